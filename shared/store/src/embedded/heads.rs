//! Decoded items in memory, exact because this process owns the folder: what is here is what is durable.
//!
//! Two ways lead to an item: this cache, and the database. Both must show a commit at one moment, or a caller could
//! see it through one and a later caller miss it through the other. The moment is the **landing**: the writer
//! announces the keys of a batch before it commits ([`Heads::take_off`]) and changes the cache when the batch is
//! durable ([`Heads::land`]). In between the cache still answers with the old items, and whoever read one of those
//! keys from the database, and so may have seen the new ones, waits for the landing ([`Heads::settle`]).
//!
//! Bounded by bytes: two generations, of which the older is dropped when the younger is full.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use parking_lot::{Condvar, Mutex};

use crate::{Item, Key, write::item_bytes};

/// An item as it is known to be; `None` is known to be absent.
pub(super) type Known = Option<Arc<Item>>;

/// Bytes of memory that a byte of an item takes, roughly, and those of an entry itself.
const MEMORY_PER_BYTE: usize = 2;
const ENTRY_BYTES: usize = 200;

pub(super) struct Heads {
    state: Mutex<State>,
    landed: Condvar,
    budget: usize,
}

#[derive(Default)]
struct State {
    young: HashMap<Key, Known>,
    old: HashMap<Key, Known>,
    young_bytes: usize,
    flight: BTreeSet<Key>,
    landings: u64,
    /// The writer is gone: nothing is kept any more, and nothing will land.
    closed: bool,
}

/// A moment before a read of the database, for [`Heads::offer`].
#[derive(Clone, Copy)]
pub(super) struct Before(u64);

impl Heads {
    /// At most about `budget` bytes.
    pub(super) fn new(budget: usize) -> Self {
        Self { state: Mutex::default(), landed: Condvar::new(), budget: budget / 2 }
    }

    /// The item, if it is known here.
    pub(super) fn get(&self, key: &Key) -> Option<Known> {
        let mut state = self.state.lock();
        if let Some(known) = state.young.get(key) {
            return Some(known.clone());
        }
        let (key, known) = state.old.remove_entry(key)?;
        self.keep(&mut state, key, known.clone());
        Some(known)
    }

    /// The moment before a read of the database.
    pub(super) fn before_read(&self) -> Before {
        Before(self.state.lock().landings)
    }

    /// Keeps what the database showed, unless it may have changed since.
    pub(super) fn offer(&self, before: Before, key: &Key, known: Known) {
        let mut state = self.state.lock();
        if state.landings == before.0 && !state.closed && !state.flight.contains(key) {
            state.old.remove(key);
            self.keep(&mut state, key.clone(), known);
        }
    }

    /// Waits until the commit that is under way, if it touches what was read, has landed.
    pub(super) fn settle(&self, touches: impl Fn(&BTreeSet<Key>) -> bool) {
        let mut state = self.state.lock();
        let now = state.landings;
        while !state.closed && state.landings == now && touches(&state.flight) {
            self.landed.wait(&mut state);
        }
    }

    /// Announces that these items are about to change.
    pub(super) fn take_off(&self, keys: impl Iterator<Item = Key>) {
        self.state.lock().flight.extend(keys);
    }

    /// Shows the items as they now are, all at once. Without any, the batch did not happen.
    pub(super) fn land(&self, items: impl Iterator<Item = (Key, Known)>) {
        let mut state = self.state.lock();
        state.flight.clear();
        state.landings += 1;
        if !state.closed {
            for (key, known) in items {
                state.old.remove(&key);
                self.keep(&mut state, key, known);
            }
        }
        self.landed.notify_all();
    }

    /// Forgets everything and lets nobody wait: from now on only the database answers.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        let landings = state.landings + 1;
        *state = State { closed: true, landings, ..State::default() };
        self.landed.notify_all();
    }

    fn keep(&self, state: &mut State, key: Key, known: Known) {
        let bytes = |key: &Key, known: &Known| {
            ENTRY_BYTES
                + MEMORY_PER_BYTE
                    * item_bytes(key, known.as_deref()).max(key.pk.len() + key.sk.len())
        };
        let new = bytes(&key, &known);
        let replaced = state.young.get(&key).map_or(0, |old| bytes(&key, old));
        state.young.insert(key, known);
        state.young_bytes = state.young_bytes + new - replaced;
        if state.young_bytes > self.budget {
            state.old = std::mem::take(&mut state.young);
            state.young_bytes = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: usize) -> Key {
        Key::new("p", format!("{n}"))
    }

    fn item(n: i64) -> Known {
        Some(Arc::new(Item::new().with("n", n)))
    }

    #[test]
    fn old_items_stay_visible_until_the_landing() {
        let heads = Heads::new(1 << 20);
        heads.land([(key(1), item(1))].into_iter());
        heads.take_off([key(1)].into_iter());
        assert_eq!(heads.get(&key(1)), Some(item(1)));
        heads.land([(key(1), item(2))].into_iter());
        assert_eq!(heads.get(&key(1)), Some(item(2)));
    }

    #[test]
    fn a_read_that_a_landing_overtook_is_not_kept() {
        let heads = Heads::new(1 << 20);
        let before = heads.before_read();
        heads.take_off([key(1)].into_iter());
        heads.offer(before, &key(1), item(1));
        assert_eq!(heads.get(&key(1)), None, "in flight");
        heads.land([(key(1), None)].into_iter());
        heads.offer(before, &key(1), item(1));
        assert_eq!(heads.get(&key(1)), Some(None), "landed");
        heads.offer(before, &key(2), item(1));
        assert_eq!(heads.get(&key(2)), None, "another landing in between");
        heads.offer(heads.before_read(), &key(2), item(1));
        assert_eq!(heads.get(&key(2)), Some(item(1)));
    }

    #[test]
    fn what_is_used_stays_and_the_rest_goes() {
        let heads = Heads::new(100 * 2 * (ENTRY_BYTES + 2 * 8));
        for n in 0..10_000 {
            heads.offer(heads.before_read(), &key(n), item(1));
            assert!(heads.get(&key(0)).is_some(), "after {n}");
        }
        assert_eq!(heads.get(&key(1)), None);
        let state = heads.state.lock();
        assert!(state.young.len() + state.old.len() < 220);
    }

    #[test]
    fn closing_wakes_who_waits_and_keeps_nothing() {
        let heads = Heads::new(1 << 20);
        heads.land([(key(1), item(1))].into_iter());
        heads.take_off([key(1)].into_iter());
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| heads.settle(|flight| flight.contains(&key(1))));
            heads.close();
            assert!(waits.join().is_ok());
        });
        assert_eq!(heads.get(&key(1)), None);
        heads.offer(heads.before_read(), &key(1), item(1));
        assert_eq!(heads.get(&key(1)), None);
    }
}
