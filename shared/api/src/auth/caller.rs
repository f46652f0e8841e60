//! Who asks: everybody, the operator of this machine, or a key.

use std::{convert::Infallible, sync::Arc};

use axum::{extract::FromRequestParts, http::request::Parts};
use subtle::ConstantTimeEq;
use tidewheel_engine::{Action, Credential, Error, PartitionId, Target};

use super::Refusal;
use crate::{Api, error::Failure};

/// Who asks.
#[derive(Clone, Debug)]
pub(crate) struct Caller(Who);

#[derive(Clone, Debug)]
enum Who {
    /// Nobody was asked.
    Anyone,
    /// Nobody looked: everything is refused.
    Nobody,
    /// Whoever runs the server.
    Operator,
    Key(Arc<Credential>),
}

impl Caller {
    pub(crate) fn anyone() -> Self {
        Self(Who::Anyone)
    }

    /// Of a request that passed no guard.
    pub(crate) fn nobody() -> Self {
        Self(Who::Nobody)
    }

    pub(crate) fn operator() -> Self {
        Self(Who::Operator)
    }

    pub(crate) fn of(credential: Arc<Credential>) -> Self {
        Self(Who::Key(credential))
    }

    /// True if it was found out who it is.
    pub(crate) fn is_known(&self) -> bool {
        !matches!(self.0, Who::Anyone)
    }

    /// The id of the key; of the operator a word.
    pub(crate) fn id(&self) -> Option<&str> {
        match &self.0 {
            Who::Anyone | Who::Nobody => None,
            Who::Operator => Some("operator"),
            Who::Key(credential) => Some(&credential.id),
        }
    }

    /// A stable name for who it is.
    pub(crate) fn principal(&self) -> &str {
        self.id().unwrap_or("anyone")
    }

    pub(crate) fn credential(&self) -> Option<&Arc<Credential>> {
        match &self.0 {
            Who::Key(credential) => Some(credential),
            _ => None,
        }
    }

    /// True if nothing can be refused.
    pub(crate) fn is_unlimited(&self) -> bool {
        self.allows(Action::Admin, Target::Everything)
    }

    pub(crate) fn allows(&self, action: Action, target: Target<'_>) -> bool {
        match &self.0 {
            Who::Anyone | Who::Operator => true,
            Who::Nobody => false,
            Who::Key(credential) => credential.allows(action, target),
        }
    }

    pub(crate) fn may(&self, action: Action, target: Target<'_>) -> Result<(), Refusal> {
        match self.allows(action, target) {
            true => Ok(()),
            false => Err(Refusal::forbidden(action, target)),
        }
    }

    /// Checks an action on a stream that a body names.
    ///
    /// # Errors
    /// 403.
    pub(crate) fn check(&self, action: Action, stream: &str) -> Result<(), Failure> {
        Ok(self.may(action, Target::Stream(stream))?)
    }

    /// Checks an action on all streams that a body names, which come in runs of one name.
    ///
    /// # Errors
    /// 403, naming the first that is not granted.
    pub(crate) fn check_all<'a>(
        &self,
        action: Action,
        streams: impl Iterator<Item = &'a str>,
    ) -> Result<(), Failure> {
        let mut checked = None;
        for stream in streams {
            if checked != Some(stream) {
                self.check(action, stream)?;
                checked = Some(stream);
            }
        }
        Ok(())
    }

    /// Checks an action on what belongs to no stream, or to all.
    ///
    /// # Errors
    /// 403.
    pub(crate) fn check_everything(&self, action: Action) -> Result<(), Failure> {
        Ok(self.may(action, Target::Everything)?)
    }

    /// Checks an action on the stream of a partition that a body names by its id. One that is not there is refused like
    /// one that is not granted.
    ///
    /// # Errors
    /// 403; those of the store.
    pub(crate) async fn check_partition(
        &self,
        api: &Api,
        action: Action,
        partition: &str,
    ) -> Result<(), Failure> {
        if self.is_unlimited() {
            return Ok(());
        }
        match stream_of_partition(api, partition).await? {
            Some(stream) => self.check(action, &stream),
            None => self.check_everything(action),
        }
    }
}

impl FromRequestParts<Api> for Caller {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &Api) -> Result<Self, Infallible> {
        Ok(parts.extensions.get().cloned().unwrap_or_else(Self::nobody))
    }
}

/// The stream of a partition by the partition's id.
pub(crate) async fn stream_of_partition(
    api: &Api,
    partition: &str,
) -> Result<Option<String>, Error> {
    let Some(id) = PartitionId::parse(partition) else { return Ok(None) };
    Ok(api.engine().partition(&id).await?.map(|info| info.stream))
}

/// True if two secrets are one. Takes as long for a wrong one as for the right one.
pub(crate) fn same(one: &str, other: &str) -> bool {
    one.as_bytes().ct_eq(other.as_bytes()).into()
}
