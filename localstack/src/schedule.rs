//! Tasks that run again and again beside the server.
//!
//! Each round is a task of its own, so that neither an error nor a panic in it ends anything: it is logged, and the next
//! round comes when it is due. A round that takes longer than the period delays the next; rounds never overlap.

use std::{fmt::Display, future::Future, time::Duration};

use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, MissedTickBehavior, interval_at},
};

/// Runs `round` every `period`, first after one period, until `closing` turns true; an unfinished round is finished.
/// A period of zero never runs it.
pub(crate) fn every<F, R, E>(
    name: &'static str,
    period: Duration,
    mut closing: watch::Receiver<bool>,
    round: F,
) -> JoinHandle<()>
where
    F: Fn() -> R + Send + 'static,
    R: Future<Output = Result<(), E>> + Send + 'static,
    E: Display + Send + 'static,
{
    tokio::spawn(async move {
        if period.is_zero() {
            return;
        }
        let mut due = interval_at(Instant::now() + period, period);
        due.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut failures = 0u32;
        loop {
            tokio::select! {
                biased;
                _ = closing.wait_for(|closing| *closing) => return,
                _ = due.tick() => {}
            }
            failures = if run(name, round()).await { 0 } else { failures.saturating_add(1) };
            if failures > 1 {
                tracing::warn!(task = name, failures, "the task has failed several times in a row");
            }
        }
    })
}

/// Runs one round; false if it failed.
pub(crate) async fn run<R, E>(name: &'static str, round: R) -> bool
where
    R: Future<Output = Result<(), E>> + Send + 'static,
    E: Display + Send + 'static,
{
    match tokio::spawn(round).await {
        Ok(Ok(())) => true,
        Ok(Err(error)) => {
            tracing::warn!(task = name, %error, "a round failed; the next will try again");
            false
        }
        Err(error) => {
            tracing::error!(task = name, %error, "a round panicked; the next will try again");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicU32, Ordering::SeqCst},
    };

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_round_that_fails_or_panics_is_followed_by_the_next() {
        let rounds = Arc::new(AtomicU32::new(0));
        let (close, closing) = watch::channel(false);
        let counting = Arc::clone(&rounds);
        let task = every("test", Duration::from_secs(1), closing, move || {
            let round = counting.fetch_add(1, SeqCst);
            async move {
                match round {
                    0 => Err("fails"),
                    1 => panic!("panics"),
                    _ => Ok(()),
                }
            }
        });
        tokio::time::sleep(Duration::from_millis(4500)).await;
        assert_eq!(rounds.load(SeqCst), 4);
        close.send(true).unwrap();
        task.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_period_of_zero_never_runs() {
        let (_close, closing) = watch::channel(false);
        let never = || async { Err::<(), _>("ran") };
        every("test", Duration::ZERO, closing, never).await.unwrap();
    }
}
