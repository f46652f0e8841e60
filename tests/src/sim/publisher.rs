//! Publishers into a declared stream: numbered ones that take each other over, plain ones, and migrations in between.
//!
//! What a numbered row says follows from its publisher and number, so that whoever takes over goes on with the same
//! rows, as a producer with an outbox does.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use tidewheel_engine::{Claim, Declaration, Engine, Error, Frame, Landed, PublishError};
use tidewheel_schema::Schema;

use super::{World, history::Tag, process::Handle, world::Chance};

/// The declared stream.
pub(crate) const ROWS: &str = "rows";

/// Numbered publishers. Few, so that they are taken over all the time.
const PUBLISHERS: u64 = 3;

/// What publishers saw.
#[derive(Debug, Default)]
pub struct Published {
    /// Rows that were answered with an offset: publisher, number, offset.
    pub numbered: Vec<(u64, u64, u64)>,
    /// The highest number that was acknowledged, by publisher.
    pub acknowledged: BTreeMap<u64, u64>,
    /// Plain frames.
    pub plain: Vec<Plain>,
}

/// A plain frame.
#[derive(Debug)]
pub struct Plain {
    /// The tags of its rows.
    pub tags: Vec<Tag>,
    /// `None` while nobody knows; then the offset of its first row, or that nothing landed.
    pub answer: Option<Option<u64>>,
}

fn schema(column: &str) -> Option<Arc<Schema>> {
    let text = format!(
        r#"{{"properties":{{"p":{{"type":"integer"}},"seq":{{"type":"integer"}},"{column}":{{"type":["integer","null"]}}}},"required":["p","seq"]}}"#
    );
    Schema::compile(&text).ok().map(Arc::new)
}

/// Declares the stream.
pub(crate) async fn declare(engine: &Engine) -> Result<(), Error> {
    let declaration =
        Declaration { schema: schema("a"), exactly_once: true, ..Declaration::default() };
    engine.declare(ROWS, declaration).await.map(|_| ())
}

pub(crate) async fn work(world: Arc<World>, process: Handle, mut chance: Chance) {
    let mut speaking: Option<(u64, Claim, u64)> = None;
    loop {
        tokio::time::sleep(chance.time(40, 900)).await;
        if !world.stormy() {
            continue;
        }
        match chance.below(20) {
            0..6 => plain(&world, &process, &mut chance).await,
            6 => migrate(&world, &process, &mut chance).await,
            7 => speaking = None,
            _ => {
                if speaking.is_none() {
                    speaking = claim(&world, &process, &mut chance).await;
                }
                if let Some((publisher, claim, next)) = &mut speaking
                    && !numbered(&world, &process, &mut chance, (*publisher, claim, next)).await
                {
                    speaking = None;
                }
            }
        }
    }
}

async fn migrate(world: &World, process: &Handle, chance: &mut Chance) {
    let column = if chance.one_in(2) { "a" } else { "b" };
    match process.engine.migrate(ROWS, schema(column), Vec::new()).await {
        Ok(_) => world.history.lock().count("migrations"),
        Err(e) if e.is_transient() => {}
        Err(e) => world.unexpected("migrate", &e),
    }
}

async fn claim(world: &World, process: &Handle, chance: &mut Chance) -> Option<(u64, Claim, u64)> {
    let publisher = chance.below(PUBLISHERS);
    let before = world.history.lock().published.acknowledged.get(&publisher).copied();
    match process.engine.claim_publisher(ROWS, &format!("publisher {publisher}")).await {
        Ok(claim) => {
            let mut history = world.history.lock();
            history.count("claims");
            if claim.last_seq < before.unwrap_or(0) {
                let last = claim.last_seq;
                let text = format!(
                    "publisher {publisher} was told {last}, and {before:?} was acknowledged"
                );
                history.violation("publishers", text);
            }
            let next = claim.last_seq + 1;
            Some((publisher, claim, next))
        }
        Err(e) if e.is_transient() => None,
        Err(e) => {
            world.unexpected("claim", &e);
            None
        }
    }
}

/// Sends some frames, as a pipeline does; false if somebody else speaks for the publisher, or nobody knows.
async fn numbered(
    world: &World,
    process: &Handle,
    chance: &mut Chance,
    (publisher, claim, next): (u64, &Claim, &mut u64),
) -> bool {
    let mut seq = *next;
    if chance.one_in(5) {
        seq -= chance.below(seq.min(4));
    }
    let mut frames = Vec::new();
    for _ in 0..1 + chance.below(3) {
        let rows = 1 + chance.below(4);
        let row = |seq| Bytes::from(format!(r#"{{"p":{publisher},"seq":{seq}}}"#));
        let rows: Vec<_> = (seq..seq + rows).map(row).collect();
        let first = seq;
        seq += rows.len() as u64;
        frames.push(Frame { claim: Some(claim.clone()), seq: first, rows });
    }
    let firsts: Vec<u64> = frames.iter().map(|f| f.seq).collect();
    let answers = process.engine.publish(ROWS, frames).await;
    let mut history = world.history.lock();
    for (first, answer) in firsts.into_iter().zip(answers) {
        match answer {
            Ok(Landed { offsets, .. }) => {
                history.count("frames landed");
                *next = (*next).max(first + offsets.len() as u64);
                let highest = history.published.acknowledged.entry(publisher).or_default();
                *highest = (*highest).max(first + offsets.len() as u64 - 1);
                for (seq, offset) in (first..).zip(offsets) {
                    if let Some(offset) = offset {
                        history.published.numbered.push((publisher, seq, offset));
                    }
                }
            }
            Err(PublishError::Gap { expected, .. }) => *next = expected,
            Err(PublishError::Superseded) => {
                history.count("takeovers");
                return false;
            }
            Err(PublishError::Failed { .. }) => {}
            Err(PublishError::Unknown { .. }) => return false,
            Err(e) => history.violation("publishers", format!("row {first} of {publisher}: {e}")),
        }
    }
    true
}

async fn plain(world: &World, process: &Handle, chance: &mut Chance) {
    let (place, rows) = {
        let mut history = world.history.lock();
        let tags: Vec<_> = (0..1 + chance.below(4)).map(|_| history.fresh_tag()).collect();
        // Of one schema, of the other, or of both.
        let more = ["", r#","a":1"#, r#","b":1"#][chance.below(3) as usize];
        let row = |tag: &Tag| Bytes::from(format!(r#"{{"p":-1,"seq":{tag}{more}}}"#));
        let rows = tags.iter().map(row).collect();
        history.published.plain.push(Plain { tags, answer: None });
        (history.published.plain.len() - 1, rows)
    };
    let frame = Frame { rows, ..Frame::default() };
    let answer = process.engine.publish(ROWS, vec![frame]).await.pop();
    let mut history = world.history.lock();
    let answer = match answer {
        Some(Ok(landed)) => Some(landed.offsets.first().copied().flatten()),
        Some(Err(PublishError::Unknown { .. })) | None => None,
        Some(Err(PublishError::Rejected { .. } | PublishError::Failed { .. })) => Some(None),
        Some(Err(e)) => {
            history.violation("publishers", format!("a plain frame: {e}"));
            None
        }
    };
    history.published.plain[place].answer = answer;
}
