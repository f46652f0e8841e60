//! What a stream's sockets in this process have done: how many follow it, when a row last came in, how many rows wait.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering::Relaxed},
    },
};

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::limits;

/// The streams with sockets, by name.
#[derive(Debug, Default)]
pub(crate) struct Activities(Mutex<HashMap<String, Arc<Activity>>>);

/// One stream's.
#[derive(Debug)]
pub(crate) struct Activity {
    subscribers: AtomicU64,
    /// 0: never.
    last_send_us: AtomicI64,
    /// Rows that publishers have sent and that wait for the store.
    waiting: watch::Sender<usize>,
}

/// Counts one subscriber while it lasts.
#[derive(Debug)]
pub struct Following(Arc<Activity>);

/// Counts one publisher's rows that wait for the store.
#[derive(Debug)]
pub(crate) struct Waiting {
    activity: Arc<Activity>,
    rows: usize,
    all: watch::Receiver<usize>,
}

impl Activities {
    pub(crate) fn of(&self, stream: &str) -> Arc<Activity> {
        let mut all = self.0.lock();
        if let Some(activity) = all.get(stream) {
            return Arc::clone(activity);
        }
        let fresh = Arc::new(Activity {
            subscribers: AtomicU64::new(0),
            last_send_us: AtomicI64::new(0),
            waiting: watch::channel(0).0,
        });
        all.insert(stream.to_owned(), Arc::clone(&fresh));
        fresh
    }

    /// The streams that have or had sockets, with subscribers and the time of the last row.
    pub(crate) fn all(&self) -> HashMap<String, (u64, Option<i64>)> {
        let all = self.0.lock();
        all.iter().map(|(name, activity)| (name.clone(), activity.read())).collect()
    }
}

impl Activity {
    fn read(&self) -> (u64, Option<i64>) {
        let last = Some(self.last_send_us.load(Relaxed)).filter(|us| *us > 0);
        (self.subscribers.load(Relaxed), last)
    }

    pub(crate) fn follow(self: &Arc<Self>) -> Following {
        self.subscribers.fetch_add(1, Relaxed);
        Following(Arc::clone(self))
    }

    pub(crate) fn sent(&self, at_us: i64) {
        self.last_send_us.fetch_max(at_us, Relaxed);
    }

    pub(crate) fn waiting(self: &Arc<Self>) -> Waiting {
        Waiting { activity: Arc::clone(self), rows: 0, all: self.waiting.subscribe() }
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        self.0.subscribers.fetch_sub(1, Relaxed);
    }
}

impl Waiting {
    pub(crate) fn add(&mut self, rows: usize) {
        if rows > 0 {
            self.rows += rows;
            self.activity.waiting.send_modify(|all| *all += rows);
        }
    }

    pub(crate) fn remove(&mut self, rows: usize) {
        let rows = rows.min(self.rows);
        if rows > 0 {
            self.rows -= rows;
            self.activity.waiting.send_modify(|all| *all = all.saturating_sub(rows));
        }
    }

    /// True while the stream's publishers may bring more.
    pub(crate) fn has_room(&self) -> bool {
        *self.all.borrow() < limits::MAX_INBOUND_ROWS
    }

    /// Waits until they may.
    pub(crate) async fn room(&mut self) {
        let _ = self.all.wait_for(|all| *all < limits::MAX_INBOUND_ROWS).await;
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let rows = self.rows;
        self.remove(rows);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn rows_that_wait_are_counted_for_all_and_leave_with_their_publisher() {
        let activities = Activities::default();
        let (mut one, mut two) = (activities.of("s").waiting(), activities.of("s").waiting());
        one.add(limits::MAX_INBOUND_ROWS - 1);
        assert!(two.has_room());
        two.add(1);
        assert!(!one.has_room() && !two.has_room());
        assert!(activities.of("other").waiting().has_room());
        drop(one);
        two.room().await;
        assert!(two.has_room());
        two.remove(5);
        assert_eq!(*two.all.borrow(), 0);
    }

    #[test]
    fn subscribers_are_counted_while_they_last() {
        let activities = Activities::default();
        let following = [activities.of("s").follow(), activities.of("s").follow()];
        activities.of("s").sent(7);
        assert_eq!(activities.all()["s"], (2, Some(7)));
        drop(following);
        assert_eq!(activities.all()["s"], (0, Some(7)));
    }
}
