//! Streams without a log: what is published goes to those who listen in this process, and nowhere else.
//!
//! Nothing is stored and nothing is promised. A listener that is slow misses frames and is told how many, by the
//! channel itself; it holds up nobody.

use std::collections::HashMap;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::broadcast;

use crate::{Engine, Uuid, limits};

/// The rows of one frame of a stream without a log, as they are sent on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relayed {
    /// When the frame was taken, µs.
    pub time_us: i64,
    /// Its rows, in order, in their stored text.
    pub rows: std::sync::Arc<[Bytes]>,
}

/// Who listens, by stream.
#[derive(Default)]
pub(crate) struct Relays(Mutex<HashMap<Uuid, broadcast::Sender<Relayed>>>);

impl Engine {
    /// Listens to a declared stream without a log in this process, from now on. A listener that falls behind by
    /// [`limits::RELAY_FRAMES`] frames is told that it has lagged, and by how many.
    pub fn listen(&self, stream: &Uuid) -> broadcast::Receiver<Relayed> {
        let mut relays = self.inner.relays.0.lock();
        // Channels that nobody listens to go when the table has grown.
        if relays.len() > 1024 && relays.len().is_power_of_two() {
            relays.retain(|_, sender| sender.receiver_count() > 0);
        }
        let fresh = || broadcast::channel(limits::RELAY_FRAMES).0;
        relays.entry(*stream).or_insert_with(fresh).subscribe()
    }

    /// Sends rows to whoever listens.
    pub(crate) fn relay(&self, stream: &Uuid, relayed: Relayed) {
        if let Some(sender) = self.inner.relays.0.lock().get(stream) {
            // Nobody listens: nobody misses it.
            let _ = sender.send(relayed);
        }
    }
}
