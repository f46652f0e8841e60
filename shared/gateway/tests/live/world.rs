//! A world for the live gateway: a store, processes on it, a managed gateway that does as it is told, and clients that
//! check what they get.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use serde_json::{Value, json};
use tidewheel_engine::{Doorbell, Engine, NotRung, PartitionId, PushItem, Pushed, Settings};
use tidewheel_gateway::live::{
    Address, Connect, Invoke, Live, NotInvoked, Post, Posted, Refused, StopAt, Work,
};
use tidewheel_store::{Env, Faulty, Memory, Store, faulty::Plan};

/// 2026-01-01 00:00 UTC, µs.
const START_US: i64 = 1_767_225_600_000_000;

/// How long an invocation may take, as the function has it.
const INVOCATION: Duration = Duration::from_secs(50);

/// What the managed gateway does with a post.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Act {
    Deliver,
    /// Nothing is sent, and this is the answer.
    Answer(Posted),
    /// It is sent, and the answer is lost.
    LoseAnswer,
    /// It is sent or not, and there is never an answer: whoever posts dies here.
    Hang {
        sent: bool,
    },
    /// It is sent after this time, whatever has happened meanwhile.
    Late(Duration),
}

type Script = Box<dyn FnMut(u64, &str) -> Act + Send>;

/// The managed gateway: sockets, and what goes over them.
#[derive(Clone)]
pub(crate) struct Sockets {
    state: Arc<Mutex<Wire>>,
}

struct Wire {
    sockets: BTreeMap<String, Socket>,
    script: Script,
    posts: u64,
    close_works: bool,
}

#[derive(Default)]
struct Socket {
    open: bool,
    frames: Vec<Bytes>,
    in_flight: u32,
    most_in_flight: u32,
}

impl std::fmt::Debug for Sockets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sockets")
    }
}

impl Sockets {
    fn new() -> Self {
        let script: Script = Box::new(|_, _| Act::Deliver);
        let wire = Wire { sockets: BTreeMap::new(), script, posts: 0, close_works: true };
        Self { state: Arc::new(Mutex::new(wire)) }
    }

    /// What becomes of posts from now on, by their number (from 1) and connection.
    pub(crate) fn script(&self, script: impl FnMut(u64, &str) -> Act + Send + 'static) {
        let mut wire = self.state.lock().unwrap();
        wire.posts = 0;
        wire.script = Box::new(script);
    }

    pub(crate) fn posts(&self) -> u64 {
        self.state.lock().unwrap().posts
    }

    pub(crate) fn is_open(&self, connection: &str) -> bool {
        self.state.lock().unwrap().sockets.get(connection).is_some_and(|s| s.open)
    }

    /// Whether connections can be closed from now on.
    pub(crate) fn close_works(&self, works: bool) {
        self.state.lock().unwrap().close_works = works;
    }

    /// The client is not there any more, and nobody is told.
    pub(crate) fn cut(&self, connection: &str) {
        if let Some(socket) = self.state.lock().unwrap().sockets.get_mut(connection) {
            socket.open = false;
        }
    }

    /// The most posts that were under way to one connection at a time.
    pub(crate) fn most_in_flight(&self) -> u32 {
        let wire = self.state.lock().unwrap();
        wire.sockets.values().map(|s| s.most_in_flight).max().unwrap_or(0)
    }

    fn arrive(&self, connection: &str, message: Option<Bytes>) {
        let mut wire = self.state.lock().unwrap();
        if let Some(socket) = wire.sockets.get_mut(connection) {
            socket.in_flight -= 1;
            socket.frames.extend(message.filter(|_| socket.open));
        }
    }

    fn open(&self, connection: &str) {
        let mut wire = self.state.lock().unwrap();
        wire.sockets.insert(connection.to_owned(), Socket { open: true, ..Socket::default() });
    }

    pub(crate) fn frames(&self, connection: &str) -> Vec<Value> {
        let wire = self.state.lock().unwrap();
        let frames = wire.sockets.get(connection).map(|s| s.frames.clone()).unwrap_or_default();
        frames.iter().map(|frame| serde_json::from_slice(frame).unwrap()).collect()
    }
}

#[async_trait]
impl Post for Sockets {
    async fn post(&self, to: &Address, message: Bytes) -> Posted {
        let connection = to.connection.as_str();
        let act = {
            let mut wire = self.state.lock().unwrap();
            wire.posts += 1;
            let n = wire.posts;
            let act = (wire.script)(n, connection);
            let Some(socket) = wire.sockets.get_mut(connection).filter(|s| s.open) else {
                return Posted::Gone;
            };
            if message.len() > 128 * 1024 {
                return Posted::TooLarge;
            }
            socket.in_flight += 1;
            socket.most_in_flight = socket.most_in_flight.max(socket.in_flight);
            act
        };
        tokio::task::yield_now().await;
        let sent = match act {
            Act::Hang { sent: false } => std::future::pending().await,
            Act::Late(after) => {
                // It arrives also if whoever posts waits no longer.
                let (sockets, connection) = (self.clone(), connection.to_owned());
                let arrival = tokio::spawn(async move {
                    tokio::time::sleep(after).await;
                    sockets.arrive(&connection, Some(message));
                });
                let _ = arrival.await;
                return Posted::Delivered;
            }
            Act::Deliver | Act::LoseAnswer | Act::Hang { .. } => true,
            Act::Answer(_) => false,
        };
        self.arrive(connection, sent.then_some(message));
        tokio::task::yield_now().await;
        match act {
            Act::Answer(posted) => posted,
            Act::LoseAnswer => Posted::Unknown,
            Act::Hang { .. } => std::future::pending().await,
            Act::Deliver | Act::Late(_) => Posted::Delivered,
        }
    }

    async fn close(&self, to: &Address) -> bool {
        tokio::task::yield_now().await;
        let works = self.state.lock().unwrap().close_works;
        if works {
            self.cut(&to.connection);
        }
        works
    }
}

/// Invocations that were asked for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Asked(Arc<Mutex<VecDeque<Work>>>);

#[async_trait]
impl Invoke for Asked {
    async fn invoke(&self, work: &Work) -> Result<(), NotInvoked> {
        self.0.lock().unwrap().push_back(work.clone());
        Ok(())
    }
}

#[async_trait]
impl Doorbell for Asked {
    async fn ring(&self, partition: &PartitionId) -> Result<(), NotRung> {
        self.0.lock().unwrap().push_back(Work::deliver(partition));
        Ok(())
    }
}

/// The world.
pub(crate) struct World {
    pub(crate) store: Memory,
    pub(crate) env: Env,
    pub(crate) sockets: Sockets,
    pub(crate) asked: Asked,
    seed: u64,
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            store: Memory::new(),
            env: Env::simulated(seed, START_US, 0),
            sockets: Sockets::new(),
            asked: Asked::default(),
            seed,
        }
    }

    /// A process, which sees the store as this does.
    pub(crate) fn process_on(&self, store: Arc<dyn Store>) -> (Engine, Live) {
        let bell: Arc<dyn Doorbell> = Arc::new(self.asked.clone());
        let settings = Settings { doorbell: Some(bell), ..Settings::default() };
        let engine = Engine::new(store, self.env.clone(), settings);
        let (post, invoke) = (Arc::new(self.sockets.clone()), Arc::new(self.asked.clone()));
        (engine.clone(), Live::new(engine, post, invoke))
    }

    pub(crate) fn process(&self) -> (Engine, Live) {
        self.process_on(Arc::new(self.store.clone()))
    }

    /// A process under faults.
    pub(crate) fn faulty(&self, plan: Plan) -> (Faulty, Live) {
        let faulty = Faulty::new(Arc::new(self.store.clone()), plan, self.env.clone());
        let (_, live) = self.process_on(Arc::new(faulty.clone()));
        (faulty, live)
    }

    pub(crate) fn stop(&self) -> StopAt {
        StopAt(self.env.now_us() + INVOCATION.as_micros() as i64)
    }

    pub(crate) async fn pass(&self, seconds: u64) {
        self.env.sleep(Duration::from_secs(seconds)).await;
    }

    pub(crate) async fn push(&self, rows: &[Value]) -> u64 {
        let items = rows.iter().map(|row| item(row.to_string())).collect();
        match self.process().0.push(items).await.last() {
            Some(Pushed::Queued { offset, .. }) => *offset,
            other => panic!("not queued: {other:?}"),
        }
    }

    pub(crate) async fn partition(&self) -> PartitionId {
        let stream = self.process().0.stream("s").await.unwrap().unwrap();
        PartitionId::of(&stream.id, "Default")
    }

    pub(crate) async fn tail(&self) -> u64 {
        self.process().0.extent(&self.partition().await).await.unwrap().unwrap().tail
    }

    pub(crate) fn take_asked(&self) -> Option<Work> {
        self.asked.0.lock().unwrap().pop_front()
    }

    /// Does all that was asked for, one after the other, each in a process of its own.
    pub(crate) async fn drain(&self) {
        while let Some(work) = self.take_asked() {
            self.process().1.work(&work, self.stop()).await.unwrap();
        }
    }

    /// What a schedule and the passing of time set right: leases lapse, the sweep looks.
    pub(crate) async fn recover(&self) {
        self.pass(40).await;
        self.process().1.work(&Work::Sweep {}, self.stop()).await.unwrap();
        self.drain().await;
    }

    pub(crate) async fn connect(
        &self,
        connection: &str,
        query: &[(&str, &str)],
    ) -> Result<(), Refused> {
        self.sockets.open(connection);
        let query = query.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let connection = connection.to_owned();
        let request = Connect { connection, query, ..Connect::default() };
        self.process().1.connect(request).await
    }

    pub(crate) async fn say(&self, connection: &str, request: Value) -> Option<Value> {
        let text = request.to_string();
        let reply = self.process().1.message(connection, &text).await;
        reply.map(|reply| serde_json::from_str(&reply).unwrap())
    }

    pub(crate) async fn disconnect(&self, connection: &str) {
        self.sockets.cut(connection);
        self.process().1.disconnect(connection).await.unwrap();
    }

    /// Items whose partition key begins like this.
    pub(crate) fn items(&self, prefix: &str) -> Vec<String> {
        let items = self.store.items();
        items.keys().filter(|k| k.pk.starts_with(prefix)).map(ToString::to_string).collect()
    }

    pub(crate) fn chance(&self, bound: u64) -> u64 {
        self.env.below(bound)
    }

    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }
}

pub(crate) fn item(payload: String) -> PushItem {
    PushItem { stream: "s".into(), payload: payload.into(), ..PushItem::default() }
}

/// A client that reconnects where it was, and checks everything that it gets.
pub(crate) struct Client {
    name: String,
    kind: Kind,
    lives: u32,
    /// Offsets it has, in order; each of its own connection in turn.
    pub(crate) has: Vec<u64>,
    /// The offset of the row that it wants next.
    pub(crate) next: u64,
    position: Option<String>,
    read: usize,
    left: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    Native,
    Streamcast,
}

impl Client {
    /// A client that wants everything from an offset of the engine on.
    pub(crate) fn new(name: &str, kind: Kind, from: u64) -> Self {
        Self {
            name: name.to_owned(),
            kind,
            lives: 0,
            has: Vec::new(),
            next: from,
            position: None,
            read: 0,
            left: false,
        }
    }

    pub(crate) fn connection(&self) -> String {
        format!("{}-{}", self.name, self.lives)
    }

    pub(crate) fn is_open(&self, world: &World) -> bool {
        self.lives > 0 && world.sockets.is_open(&self.connection())
    }

    /// Connects, or connects again, where it was.
    pub(crate) async fn connect(&mut self, world: &World) {
        self.lives += 1;
        self.read = 0;
        let connection = self.connection();
        match self.kind {
            Kind::Streamcast => {
                let offset = (self.next + 1).to_string();
                let query = [("stream", "s"), ("offset", offset.as_str())];
                world.connect(&connection, &query).await.unwrap();
            }
            Kind::Native => {
                world.connect(&connection, &[]).await.unwrap();
                let from = match &self.position {
                    Some(position) => json!({"position": position}),
                    None => json!({"offset": self.next}),
                };
                let request = json!({"id": "a", "op": "subscribe", "stream": "s", "from": from});
                assert_eq!(world.say(&connection, request).await, None);
            }
        }
    }

    pub(crate) async fn leave(&mut self, world: &World) {
        self.read(world);
        self.left = true;
        world.disconnect(&self.connection()).await;
    }

    pub(crate) fn has_left(&self) -> bool {
        self.left
    }

    /// Reads what has come, and checks it.
    pub(crate) fn read(&mut self, world: &World) {
        let frames = world.sockets.frames(&self.connection());
        let seed = world.seed();
        for (at, frame) in frames.iter().enumerate().skip(self.read) {
            let context = || format!("seed {seed}, {}: {frame}", self.connection());
            match self.kind {
                Kind::Streamcast if at == 0 => assert_eq!(frame["streamcast"], 4, "{}", context()),
                Kind::Streamcast => {
                    let offset = frame[0].as_u64().unwrap_or_else(|| panic!("{}", context())) - 1;
                    assert_eq!(offset, self.next, "exactly the next: {}", context());
                    self.has.push(offset);
                    self.next += 1;
                }
                Kind::Native if frame.get("subscribed").is_some() => {
                    assert_eq!(frame["subscribed"]["gapless"], true, "{}", context());
                }
                Kind::Native => self.take(frame, &context()),
            }
        }
        self.read = frames.len();
    }

    fn take(&mut self, frame: &Value, context: &str) {
        let offset = |name: &str| {
            let position = frame[name].as_str().unwrap_or_else(|| panic!("{name}: {context}"));
            position.rsplit_once('@').unwrap().1.parse::<u64>().unwrap()
        };
        assert_eq!(frame["id"], "a", "{context}");
        if offset("next") <= self.next {
            return;
        }
        assert!(offset("from") <= self.next, "a hole before {}: {context}", self.next);
        for row in frame["rows"].as_array().unwrap_or_else(|| panic!("{context}")) {
            let offset = row[0].as_u64().unwrap();
            if offset >= self.next {
                assert_eq!(offset, self.next, "{context}");
                self.has.push(offset);
                self.next += 1;
            }
        }
        assert_eq!(self.next, offset("next"), "{context}");
        self.position = frame["next"].as_str().map(str::to_owned);
    }
}

/// Lets everything come to rest: clients that were closed come back, what was left undone is found. In the end every
/// client has every row.
pub(crate) async fn settle(world: &World, clients: &mut [Client]) {
    world.sockets.script(|_, _| Act::Deliver);
    for _ in 0..6 {
        world.drain().await;
        world.recover().await;
        for client in clients.iter_mut().filter(|c| !c.left) {
            client.read(world);
            if !client.is_open(world) {
                client.connect(world).await;
            }
        }
    }
    world.drain().await;
    let tail = world.tail().await;
    for client in clients.iter_mut().filter(|c| !c.left) {
        client.read(world);
        assert_eq!(client.next, tail, "seed {}: {} has everything", world.seed(), client.name);
    }
    let distinct: BTreeSet<_> = world.items("wf#").into_iter().collect();
    assert!(distinct.is_empty(), "seed {}: nothing is under way: {distinct:?}", world.seed());
}
