//! Who publishes under which id in this process, so that an older connection hears at once that another took over.
//!
//! Safety does not come from here: every claim has an epoch, and the store refuses what an older one brings. This only
//! saves the older connection the time until it finds out.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use tidewheel_engine::Uuid;
use tokio::sync::oneshot;

type Key = (Uuid, String);

#[derive(Debug)]
struct Holder {
    epoch: i64,
    /// Its other end hears when this goes.
    _taken: oneshot::Sender<()>,
}

/// The connections that publish under an id.
#[derive(Clone, Debug, Default)]
pub(crate) struct Claims(Arc<Mutex<HashMap<Key, Holder>>>);

/// A connection's hold on its id. Resolves [`Hold::taken`] when another connection takes over.
#[derive(Debug)]
pub(crate) struct Hold {
    claims: Claims,
    key: Key,
    epoch: i64,
    taken: oneshot::Receiver<()>,
}

impl Claims {
    /// Somebody is about to claim an id: whoever holds it brings nothing more.
    pub(crate) fn release(&self, stream: Uuid, publisher: &str) {
        self.0.lock().remove(&(stream, publisher.to_owned()));
    }

    /// An id was claimed under an epoch. If a later claim is held already, this one is taken over at once.
    pub(crate) fn hold(&self, stream: Uuid, publisher: &str, epoch: i64) -> Hold {
        let key = (stream, publisher.to_owned());
        let (sender, taken) = oneshot::channel();
        let mut claims = self.0.lock();
        if claims.get(&key).is_none_or(|held| held.epoch < epoch) {
            claims.insert(key.clone(), Holder { epoch, _taken: sender });
        }
        Hold { claims: self.clone(), key, epoch, taken }
    }
}

impl Hold {
    /// Waits until another connection has the id. Dropping the future loses nothing.
    pub(crate) async fn taken(&mut self) {
        let _ = (&mut self.taken).await;
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut claims = self.claims.0.lock();
        if claims.get(&self.key).is_some_and(|held| held.epoch == self.epoch) {
            claims.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_taken(hold: &mut Hold) -> bool {
        !matches!(hold.taken.try_recv(), Err(oneshot::error::TryRecvError::Empty))
    }

    #[test]
    fn the_later_epoch_holds_whoever_registers_first() {
        let (claims, stream) = (Claims::default(), Uuid::from_bytes([1; 16]));
        let mut first = claims.hold(stream, "p", 1);
        let mut other = claims.hold(stream, "q", 1);
        assert!(!is_taken(&mut first));
        let mut third = claims.hold(stream, "p", 3);
        assert!(is_taken(&mut first) && !is_taken(&mut third) && !is_taken(&mut other));
        let mut second = claims.hold(stream, "p", 2);
        assert!(is_taken(&mut second) && !is_taken(&mut third));
        drop((first, second));
        assert!(!is_taken(&mut third));
        claims.release(stream, "p");
        assert!(is_taken(&mut third));
        drop(third);
        drop(other);
        assert!(claims.0.lock().is_empty());
    }
}
