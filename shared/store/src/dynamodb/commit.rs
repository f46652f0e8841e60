//! Writes as requests, and refusals as what they mean for the commit.
//!
//! One write is a `PutItem`, `UpdateItem` or `DeleteItem`; several, or one that only checks, are one
//! `TransactWriteItems` under a token of their own. None of them is ever sent twice: the SDK's retries are off, because
//! a write that was applied and whose reply was lost would come back as a refusal of itself.
//!
//! # When a cancelled transaction is a conflict
//!
//! A cancellation gives a reason for each write. They are looked at in this order:
//!
//! 1. Any `TransactionConflict` makes it [`CommitError::Contended`], even beside conditions that failed. Another
//!    transaction was at work, perhaps our own earlier one whose reply was lost and which has reached one item and not
//!    yet the other: the list of failed writes would be incomplete, and callers read what is not in it as "held". Nothing
//!    is lost by asking again, since nothing was written.
//! 2. Any throttled write makes it [`CommitError::Throttled`], for the same reason: that write was not looked at.
//! 3. Conditions that failed make it [`CommitError::Conflict`], with every one of them and its item.
//! 4. What is left is a fault that only the item shows: too large, or of another type than the change is made for. The
//!    service says it in words and not always of which attribute, so the items are read and judged as the local back ends
//!    judge them ([`crate::decide`]); they give the same answer, and so does this one. If the items have changed so
//!    that the conditions hold no more, it is [`CommitError::Contended`]: nothing was written, ask again.
//!
//! The same judgement is made of a refused condition whose item fulfils every condition of the caller: then what failed
//! was the guard of an `Add` against sums beyond 64 bits, and the commit is invalid.

use aws_sdk_dynamodb::{
    config::{Builder, retry::RetryConfig},
    error::{ProvideErrorMetadata, SdkError},
    operation::{
        delete_item::DeleteItemError, put_item::PutItemError,
        transact_write_items::TransactWriteItemsError, update_item::UpdateItemError,
    },
    types::{
        CancellationReason, ConditionCheck, Delete, Put, ReturnConsumedCapacity, ReturnValue,
        ReturnValuesOnConditionCheckFailure, TransactWriteItem, Update,
        error::ConditionalCheckFailedException,
    },
};
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use aws_smithy_types::error::operation::BuildError;

use super::{
    DynamoDb,
    attributes::{Attributes, of_item, of_key, to_item},
    expression::Expressions,
    failure::Failure,
};
use crate::{
    Action, CommitError, Committed, Env, Failed, Item, Key, Store, Write,
    decide::{decide, is_transaction},
    meter::{self, Units},
};

/// Retries are off: see the module's page.
fn once() -> Builder {
    aws_sdk_dynamodb::Config::builder().retry_config(RetryConfig::disabled())
}

const OLD: ReturnValuesOnConditionCheckFailure = ReturnValuesOnConditionCheckFailure::AllOld;

/// The failures of plain writes, which may be a condition's.
trait Conditional {
    fn condition(&self) -> Option<&ConditionalCheckFailedException>;
}

macro_rules! conditional {
    ($($error:ident)*) => {$(
        impl Conditional for $error {
            fn condition(&self) -> Option<&ConditionalCheckFailedException> {
                match self {
                    $error::ConditionalCheckFailedException(failed) => Some(failed),
                    _ => None,
                }
            }
        }
    )*};
}
conditional!(PutItemError UpdateItemError DeleteItemError);

impl DynamoDb {
    /// Carries the writes out, all or none.
    pub(super) async fn write(&self, writes: &[Write]) -> Result<Committed, CommitError> {
        match writes {
            [write] if !is_transaction(writes) => self.write_one(write).await,
            _ => self.write_all(writes).await,
        }
    }

    async fn write_one(&self, write: &Write) -> Result<Committed, CommitError> {
        let (client, table) = (self.dynamo(), self.table());
        let mut said = Expressions::of(write);
        match &write.action {
            Action::Put(item) => {
                let put = client
                    .put_item()
                    .table_name(table)
                    .set_item(Some(of_item(&write.key, item)))
                    .set_condition_expression(said.condition.take())
                    .set_expression_attribute_names(said.names())
                    .set_expression_attribute_values(said.values())
                    .return_values_on_condition_check_failure(OLD)
                    .return_consumed_capacity(ReturnConsumedCapacity::Total)
                    .customize()
                    .config_override(once());
                match put.send().await {
                    Ok(done) => {
                        self.bill_writes(done.consumed_capacity());
                        Ok(Committed { image: Some(item.clone()) })
                    }
                    Err(error) => Err(self.refused("PutItem", write, &error).await),
                }
            }
            Action::Update(_) => {
                let update = client
                    .update_item()
                    .table_name(table)
                    .set_key(Some(of_key(&write.key)))
                    .set_update_expression(said.update.take())
                    .set_condition_expression(said.condition.take())
                    .set_expression_attribute_names(said.names())
                    .set_expression_attribute_values(said.values())
                    .return_values(ReturnValue::AllNew)
                    .return_values_on_condition_check_failure(OLD)
                    .return_consumed_capacity(ReturnConsumedCapacity::Total)
                    .customize()
                    .config_override(once());
                match update.send().await {
                    Ok(done) => {
                        self.bill_writes(done.consumed_capacity());
                        let image = done.attributes.unwrap_or_default();
                        // It was written. What it left cannot be told, and reading it will say why.
                        let image = to_item(&write.key, image)
                            .map_err(|damage| CommitError::Unknown(damage.to_string()))?;
                        Ok(Committed { image: Some(image) })
                    }
                    Err(error) => Err(self.refused("UpdateItem", write, &error).await),
                }
            }
            // A check is a transaction.
            Action::Delete | Action::Check => {
                let delete = client
                    .delete_item()
                    .table_name(table)
                    .set_key(Some(of_key(&write.key)))
                    .set_condition_expression(said.condition.take())
                    .set_expression_attribute_names(said.names())
                    .set_expression_attribute_values(said.values())
                    .return_values_on_condition_check_failure(OLD)
                    .return_consumed_capacity(ReturnConsumedCapacity::Total)
                    .customize()
                    .config_override(once());
                match delete.send().await {
                    Ok(done) => {
                        self.bill_writes(done.consumed_capacity());
                        Ok(Committed { image: None })
                    }
                    Err(error) => Err(self.refused("DeleteItem", write, &error).await),
                }
            }
        }
    }

    /// What the failure of a plain write means.
    async fn refused<E>(
        &self,
        operation: &str,
        write: &Write,
        error: &SdkError<E, HttpResponse>,
    ) -> CommitError
    where
        E: Conditional + std::error::Error + ProvideErrorMetadata + 'static,
    {
        if let Some(failed) = error.as_service_error().and_then(Conditional::condition) {
            let current = match found(&write.key, failed.item()) {
                Ok(current) => current,
                Err(unreadable) => return unreadable,
            };
            // The reply of a refusal does not say what it cost; the published rule does.
            let write_units = meter::of_write(write, current.as_ref(), None, false);
            self.bill(Units { write_units, ..Units::default() });
            return match write.apply(current.as_ref()) {
                Err(no_room) => no_room.into(),
                Ok(_) => CommitError::Conflict(vec![Failed { write: 0, current }]),
            };
        }
        match Failure::of(operation, error) {
            Failure::Faulty(why) => self.judge(std::slice::from_ref(write), why).await,
            other => other.of_commit(),
        }
    }

    async fn write_all(&self, writes: &[Write]) -> Result<Committed, CommitError> {
        let items = writes
            .iter()
            .map(|write| transact_item(self.table(), write))
            .collect::<Result<Vec<_>, _>>()
            .map_err(|e| CommitError::Unavailable(format!("{OPERATION}: {e}")))?;
        // The token makes a repetition of this very request harmless. It must be chance, and never a simulation's: two
        // processes of one seed would take each other's transactions for their own.
        let transact = self
            .dynamo()
            .transact_write_items()
            .set_transact_items(Some(items))
            .client_request_token(Env::system().token())
            .return_consumed_capacity(ReturnConsumedCapacity::Total)
            .customize()
            .config_override(once());
        match transact.send().await {
            Ok(done) => {
                self.bill_writes(done.consumed_capacity());
                Ok(Committed { image: None })
            }
            Err(error) => {
                if let Some(TransactWriteItemsError::TransactionCanceledException(cancelled)) =
                    error.as_service_error()
                {
                    return Err(self.cancelled(writes, cancelled.cancellation_reasons()).await);
                }
                Err(match Failure::of(OPERATION, &error) {
                    Failure::Faulty(why) => self.judge(writes, why).await,
                    other => other.of_commit(),
                })
            }
        }
    }

    /// What the reasons of a cancelled transaction mean: see the module's page.
    async fn cancelled(&self, writes: &[Write], reasons: &[CancellationReason]) -> CommitError {
        let (mut failed, mut no_room) = (Vec::new(), None);
        let (mut contended, mut throttled, mut faults) = (false, false, Vec::new());
        let mut write_units = 0.0;
        for (at, write) in writes.iter().enumerate() {
            let reason = reasons.get(at);
            let current = match found(&write.key, reason.and_then(CancellationReason::item)) {
                Ok(current) => current,
                Err(unreadable) => return unreadable,
            };
            write_units += meter::of_write(write, current.as_ref(), None, true);
            match reason.and_then(CancellationReason::code).unwrap_or("None") {
                "None" => {}
                "TransactionConflict" => contended = true,
                "ThrottlingError" | "ProvisionedThroughputExceeded" => throttled = true,
                "ConditionalCheckFailed" => match write.apply(current.as_ref()) {
                    Err(invalid) => no_room = no_room.or(Some(invalid)),
                    Ok(_) => failed.push(Failed { write: at, current }),
                },
                code => {
                    let message = reason.and_then(CancellationReason::message);
                    let message = message.unwrap_or("no message");
                    faults.push(format!("item `{}`: {code}: {message}", write.key));
                }
            }
        }
        // A lower bound: the items of writes that did not fail do not come with the reply.
        self.bill(Units { write_units, ..Units::default() });
        if contended {
            CommitError::Contended
        } else if throttled {
            CommitError::Throttled
        } else if !failed.is_empty() {
            CommitError::Conflict(failed)
        } else if let Some(no_room) = no_room {
            no_room.into()
        } else {
            self.judge(writes, format!("{OPERATION} was cancelled: {}", faults.join("; "))).await
        }
    }

    /// Finds what the service found fault with, in the items as they are.
    async fn judge(&self, writes: &[Write], why: String) -> CommitError {
        let keys: Vec<Key> = writes.iter().map(|write| write.key.clone()).collect();
        let Ok(items) = self.batch_get(&keys).await else { return CommitError::Unavailable(why) };
        let current: Vec<Option<&Item>> = items.iter().map(Option::as_ref).collect();
        match decide(writes, &current) {
            // The service looks at conditions first, and they held: an item has changed since.
            Err(CommitError::Conflict(_)) => CommitError::Contended,
            Err(fault) => fault,
            // Either an item has changed since, or the service has a rule that this crate does not know.
            Ok(_) => CommitError::Unavailable(why),
        }
    }
}

const OPERATION: &str = "TransactWriteItems";

/// The item that came with a refusal.
fn found(key: &Key, attributes: Option<&Attributes>) -> Result<Option<Item>, CommitError> {
    attributes
        .map(|attributes| to_item(key, attributes.clone()))
        .transpose()
        .map_err(|damage| CommitError::Unavailable(damage.to_string()))
}

fn transact_item(table: &str, write: &Write) -> Result<TransactWriteItem, BuildError> {
    let mut said = Expressions::of(write);
    let item = TransactWriteItem::builder();
    Ok(match &write.action {
        Action::Put(new) => item.put(
            Put::builder()
                .table_name(table)
                .set_item(Some(of_item(&write.key, new)))
                .set_condition_expression(said.condition.take())
                .set_expression_attribute_names(said.names())
                .set_expression_attribute_values(said.values())
                .return_values_on_condition_check_failure(OLD)
                .build()?,
        ),
        Action::Update(_) => item.update(
            Update::builder()
                .table_name(table)
                .set_key(Some(of_key(&write.key)))
                .update_expression(said.update_in_transaction())
                .set_condition_expression(said.condition.take())
                .set_expression_attribute_names(said.names())
                .set_expression_attribute_values(said.values())
                .return_values_on_condition_check_failure(OLD)
                .build()?,
        ),
        Action::Delete => item.delete(
            Delete::builder()
                .table_name(table)
                .set_key(Some(of_key(&write.key)))
                .set_condition_expression(said.condition.take())
                .set_expression_attribute_names(said.names())
                .set_expression_attribute_values(said.values())
                .return_values_on_condition_check_failure(OLD)
                .build()?,
        ),
        Action::Check => item.condition_check(
            ConditionCheck::builder()
                .table_name(table)
                .set_key(Some(of_key(&write.key)))
                .set_condition_expression(said.condition.take())
                .set_expression_attribute_names(said.names())
                .set_expression_attribute_values(said.values())
                .return_values_on_condition_check_failure(OLD)
                .build()?,
        ),
    }
    .build())
}
