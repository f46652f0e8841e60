//! Consumers: they pop under a lease, think for a while or far too long, and acknowledge, give back, or give up.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tidewheel_engine::{
    Ack, Error, Message, Pop, PopTarget, Popped, QUEUE_MODE_GROUP, SubscriptionMode, Verdict,
};

use super::{
    World,
    history::{Answer, By, Delivery, History},
    process::Handle,
    world::{AGED, Chance, JOBS, LEASE, ORDERS, PARTITIONS, TAPES},
};

/// Who consumes what, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Everything of the orders, from the beginning.
    All,
    /// The same by a group that joins in the middle.
    Late,
    /// Orders from the moment of joining, in the middle.
    New,
    /// Orders, committed at delivery.
    Auto,
    /// One named partition of the orders at a time, by the group without a name.
    Named,
    /// Jobs, some of which fail.
    Jobs,
    /// The stream under retention.
    Aged,
    /// The stream that is played again.
    Tapes,
}

impl Kind {
    pub(crate) fn stream(self) -> &'static str {
        match self {
            Kind::All | Kind::Late | Kind::New | Kind::Auto | Kind::Named => ORDERS,
            Kind::Jobs => JOBS,
            Kind::Aged => AGED,
            Kind::Tapes => TAPES,
        }
    }

    pub(crate) fn group(self) -> &'static str {
        match self {
            Kind::All => "all",
            Kind::Late => "late",
            Kind::New => "new",
            Kind::Auto => "auto",
            Kind::Named => QUEUE_MODE_GROUP,
            Kind::Jobs => "workers",
            Kind::Aged => "aged",
            Kind::Tapes => "tapes",
        }
    }

    fn mode(self) -> SubscriptionMode {
        if self == Kind::New { SubscriptionMode::New } else { SubscriptionMode::All }
    }

    /// When the group's first pop is made.
    fn joins(self) -> Duration {
        Duration::from_secs(match self {
            Kind::Late => 40,
            Kind::New => 50,
            _ => 0,
        })
    }
}

/// A job that fails whatever is done.
pub(crate) fn is_poison(tag: u64) -> bool {
    tag.is_multiple_of(13)
}

/// A job that is given up at once.
pub(crate) fn is_hopeless(tag: u64) -> bool {
    tag % 29 == 1 && !is_poison(tag)
}

/// A pop and what it brought, noted by partition.
pub(crate) async fn pop(
    world: &World,
    process: &Handle,
    pop: Pop,
    group: &str,
) -> Result<(Popped, Vec<(usize, Vec<Message>)>), Error> {
    let stream = match &pop.target {
        PopTarget::Partition { stream, .. } | PopTarget::Stream { stream } => stream.clone(),
        PopTarget::Labels { .. } => String::new(),
    };
    let invoked = world.now();
    world
        .history
        .lock()
        .joined
        .entry((stream.clone(), group.to_owned()))
        .or_insert((invoked, None));
    let auto = pop.auto_ack;
    let mut popped = process.engine.pop(pop).await?;
    let returned = world.now();
    let mut history = world.history.lock();
    if let Some(joined) = history.joined.get_mut(&(stream.clone(), group.to_owned())) {
        joined.1.get_or_insert(returned);
    }
    let mut parts: Vec<Vec<Message>> = Vec::new();
    for message in std::mem::take(&mut popped.messages) {
        match parts.last_mut() {
            Some(part) if part[0].partition.id == message.partition.id => part.push(message),
            _ => parts.push(vec![message]),
        }
    }
    let parts = parts
        .into_iter()
        .map(|messages| {
            let place = history.delivered(Delivery {
                group: group.to_owned(),
                stream: stream.clone(),
                partition: messages[0].partition.id,
                lease: if auto { String::new() } else { popped.lease_id.clone() },
                records: History::records(&messages.iter().collect::<Vec<_>>()),
                invoked,
                returned,
                skew_us: process.skew_us,
                lease_time: LEASE,
            });
            (place, messages)
        })
        .collect();
    Ok((popped, parts))
}

pub(crate) fn pop_of(
    stream: &str,
    group: &str,
    mode: SubscriptionMode,
    chance: &mut Chance,
) -> Pop {
    Pop {
        conflation: None,
        target: PopTarget::Stream { stream: stream.to_owned() },
        group: Some(group.to_owned()),
        batch: 1 + chance.below(40) as usize,
        partitions: 1 + chance.below(3) as usize,
        wait: Some(chance.time(0, 8_000)),
        lease_seconds: None,
        auto_ack: false,
        mode,
    }
}

/// A worker thinks: usually not long, sometimes for longer than its lease.
pub(crate) async fn think(world: &World, chance: &mut Chance) {
    let storm = world.stormy();
    let time = match chance.below(100) {
        0..6 if storm => chance.time(5_000, 60_000),
        6..9 if storm => LEASE + chance.time(0, 1_200) - Duration::from_millis(600),
        9..50 => chance.time(0, 400),
        _ => Duration::ZERO,
    };
    tokio::time::sleep(time).await;
}

pub(crate) async fn work(world: Arc<World>, process: Handle, mut chance: Chance, kind: Kind) {
    tokio::time::sleep(kind.joins().saturating_sub(world.now())).await;
    let mut turn = 0u64;
    loop {
        turn += 1;
        let mut request = pop_of(kind.stream(), kind.group(), kind.mode(), &mut chance);
        request.auto_ack = kind == Kind::Auto;
        if kind == Kind::Named {
            let at = if world.stormy() { chance.below(PARTITIONS) } else { turn % PARTITIONS };
            let partition = format!("p{at}");
            request.target = PopTarget::Partition { stream: ORDERS.to_owned(), partition };
            request.group = None;
            request.wait = Some(chance.time(0, if world.stormy() { 1_000 } else { 50 }));
        }
        let (popped, parts) = match pop(&world, &process, request, kind.group()).await {
            Ok(found) => found,
            Err(e) => {
                if !e.is_transient() {
                    world.unexpected("pop", &e);
                }
                tokio::time::sleep(chance.time(10, 300)).await;
                continue;
            }
        };
        if parts.is_empty() {
            tokio::time::sleep(chance.time(10, 200)).await;
            continue;
        }
        if kind == Kind::Auto {
            continue;
        }
        think(&world, &mut chance).await;
        if world.stormy() && chance.percent(4) {
            world.history.lock().count("batches abandoned");
            continue;
        }
        for (delivery, messages) in parts {
            settle(&world, &process, &mut chance, kind, &popped.lease_id, delivery, &messages)
                .await;
        }
    }
}

async fn settle(
    world: &World,
    process: &Handle,
    chance: &mut Chance,
    kind: Kind,
    lease: &str,
    delivery: usize,
    messages: &[Message],
) {
    if world.stormy() && chance.percent(6) {
        // Half now and half later.
        let half = messages.len().div_ceil(2);
        // What is silent below an acknowledged record is done: whoever goes on must know that the first half is.
        if !ack(world, process, chance, kind, lease, delivery, &messages[..half]).await {
            return;
        }
        if chance.percent(30) {
            let _ = process.engine.extend(lease, LEASE.as_secs() as i64).await;
        }
        think(world, chance).await;
        if half < messages.len() {
            ack(world, process, chance, kind, lease, delivery, &messages[half..]).await;
        }
        return;
    }
    ack(world, process, chance, kind, lease, delivery, messages).await;
}

fn verdict(world: &World, chance: &mut Chance, kind: Kind, message: &Message) -> Verdict {
    let tag = History::tag_of(&message.record.payload);
    match kind {
        Kind::Jobs if is_poison(tag) => Verdict::Failed,
        Kind::Jobs if is_hopeless(tag) => Verdict::DeadLetter,
        _ if world.stormy() && chance.one_in(150) => Verdict::Retry,
        _ => Verdict::Completed,
    }
}

/// Acknowledges; true if it is known to have happened.
async fn ack(
    world: &World,
    process: &Handle,
    chance: &mut Chance,
    kind: Kind,
    lease: &str,
    delivery: usize,
    messages: &[Message],
) -> bool {
    let verdicts: Vec<(u64, Verdict)> =
        messages.iter().map(|m| (m.record.offset, verdict(world, chance, kind, m))).collect();
    let acks: Vec<Ack> = messages
        .iter()
        .zip(&verdicts)
        .map(|(m, (_, verdict))| Ack {
            transaction_id: m.record.transaction_id.clone(),
            partition_id: m.partition.id.to_string(),
            verdict: *verdict,
            lease_id: Some(lease.to_owned()),
            error: Some("it failed".to_owned()),
        })
        .collect();
    let attempts = if chance.percent(50) { 1 } else { 3 };
    for _ in 0..attempts {
        let now = world.now();
        let noted = world.history.lock().settling(delivery, By::Ack, verdicts.clone(), now);
        let answer = process.engine.ack(Some(kind.group()), acks.clone()).await;
        let (answer, again) = match answer {
            Err(Error::Unknown(_)) => (Answer::Doubtful, true),
            Err(e) if e.is_transient() => (Answer::Refused, true),
            Err(e) => {
                world.unexpected("ack", &e);
                (Answer::Refused, false)
            }
            Ok(acked) => {
                let dead: BTreeSet<u64> = acked
                    .iter()
                    .zip(&verdicts)
                    .filter(|(a, _)| a.dead_lettered)
                    .map(|(_, (offset, _))| *offset)
                    .collect();
                let errors: Vec<&String> = acked.iter().filter_map(|a| a.error.as_ref()).collect();
                match errors.first() {
                    Some(e) if errors.len() == acked.len() => (refusal(world, e), false),
                    // A repeat of something that was half done.
                    Some(_) => (Answer::Doubtful, false),
                    None => {
                        let noop = acked.iter().all(|a| a.noop);
                        (Answer::Done { at: world.now(), dead, noop }, false)
                    }
                }
            }
        };
        let done = matches!(answer, Answer::Done { .. });
        world.history.lock().settled(noted, answer);
        if !again {
            return done;
        }
    }
    false
}

/// What a refused acknowledgement says.
fn refusal(world: &World, error: &str) -> Answer {
    if error.contains("unknown") {
        return Answer::Doubtful;
    }
    let expected = ["lease", "busy", "out of order", "already committed", "unresolvable"];
    if !expected.iter().any(|e| error.contains(e)) {
        world.history.lock().violation("errors", format!("ack: {error}"));
    }
    Answer::Refused
}

/// Plays the tapes again now and then.
pub(crate) async fn seek(world: Arc<World>, process: Handle, mut chance: Chance) {
    loop {
        tokio::time::sleep(chance.time(5_000, 20_000)).await;
        if !world.stormy() {
            continue;
        }
        let time = if chance.one_in(3) { None } else { Some(0) };
        if let Err(e) = process.engine.seek(Kind::Tapes.group(), TAPES, None, time).await
            && !e.is_transient()
        {
            world.unexpected("seek", &e);
        }
        world.history.lock().count("seeks");
    }
}
