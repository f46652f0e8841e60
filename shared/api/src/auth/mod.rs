//! Who asks, and whether they may.
//!
//! Every request passes [`guard`] before any of its body is read. It finds the route's [`Rule`] (which action, and where
//! the name of what it is done to stands), looks up the key that the request presents, and refuses: 401 where there is
//! none that counts, 403 where its grants do not reach. A name in the path or the query is checked there; names in a body
//! are checked by the handler once it has parsed, by the [`Caller`] that [`Body`](crate::body::Body) brings: everything
//! that a request names must be granted, else nothing of it happens.
//!
//! - A route without a rule asks for every grant there is, so that a forgotten one is closed and not open.
//! - A refusal never says whether what it is about exists.
//! - While there is no key at all, everybody may do everything, if whoever serves this says so
//!   ([`Settings::open_without_keys`](crate::Settings::open_without_keys)).
//! - What asks to control or administer, and every refusal, is written to the audit log.
//!
//! A secret is compared and dropped. It is in no log, span, error, metric or audit entry.

mod caller;
mod keys;
mod quota;
mod refuse;
mod rules;

use std::{borrow::Cow, sync::Arc};

use axum::{
    extract::{FromRequestParts, MatchedPath, RawPathParams, Request, State},
    http::{HeaderMap, Method, request::Parts},
    middleware::Next,
    response::Response,
};
use tidewheel_engine::{Action, AuditEntry, Engine, Error, Proof, Target, presented};

pub(crate) use self::{
    caller::Caller,
    keys::routes,
    quota::Quotas,
    refuse::{AboutStream, Refusal},
    rules::{Place, Rule, Rules, keys_name, lock_name, rule_of},
};
use crate::{Api, query::Parameters};

/// The secret with which whoever runs a server reaches it from the same machine. It lives as long as the process.
#[derive(Clone)]
pub struct OperatorKey(Arc<str>);

impl OperatorKey {
    /// A key out of chance.
    pub fn new(engine: &Engine) -> Self {
        let env = engine.env();
        Self(format!("twop_{}{}", env.token(), env.token()).into())
    }

    /// The text that is sent.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for OperatorKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OperatorKey(..)")
    }
}

/// The routes' rules, and the API that they guard.
#[derive(Clone)]
pub(crate) struct Guard {
    pub(crate) api: Api,
    pub(crate) rules: Arc<Rules>,
}

/// Lets a request through to its handler, or refuses it.
pub(crate) async fn guard(State(guard): State<Guard>, request: Request, next: Next) -> Response {
    let Guard { api, rules } = guard;
    if request.extensions().get::<Caller>().is_some() {
        // Guarded already, together with what stands beside the API.
        return next.run(request).await;
    }
    let route = request.extensions().get::<MatchedPath>().cloned();
    let route = route.as_ref().map(MatchedPath::as_str);
    let rule = rules.of(request.method(), route);
    if rule.place == Place::Nobody {
        return next.run(request).await;
    }
    let path = request.uri().path().to_owned();
    let caller = match api.caller(request.headers()).await {
        Ok(caller) => caller,
        Err(refusal) => return api.refused(None, rule.action, route, refusal, &path).await,
    };
    if !caller.is_known() {
        // There are no keys: nobody is asked, and there is nobody to write down.
        let mut request = request;
        request.extensions_mut().insert(caller);
        return next.run(request).await;
    }
    let (mut parts, body) = request.into_parts();
    let found = stream_of(&api, &caller, rule, &mut parts).await;
    let about = match found {
        Ok(about) => about,
        Err(e) => return Refusal::unavailable(&e).into_response(&path),
    };
    let granted = match &about {
        About::Later => Ok(()),
        About::Everything => caller.may(rule.action, Target::Everything),
        About::Streams(names) => {
            names.iter().try_for_each(|name| caller.may(rule.action, Target::Stream(name)))
        }
    };
    if let Err(refusal) = granted {
        return api.refused(Some(&caller), rule.action, route, refusal, &path).await;
    }
    let body = match api.quotas().admit(api.now_us(), &caller, &parts.headers, body) {
        Ok(body) => body,
        Err(refusal) => return refusal.into_response(&path),
    };
    parts.extensions.insert(caller.clone());
    let response = next.run(Request::from_parts(parts, body)).await;
    let refused = matches!(response.status().as_u16(), 401 | 403);
    if refused || rule.action >= Action::Control {
        let named = response.extensions().get::<AboutStream>().map(|s| s.0.clone());
        let stream = named.or_else(|| about.one().map(str::to_owned));
        api.record(
            Some(&caller),
            rule.action,
            route,
            stream.as_deref(),
            response.status().as_u16(),
        )
        .await;
    }
    response
}

/// What a request is about.
enum About {
    /// These streams.
    Streams(Vec<String>),
    /// All of them, or none.
    Everything,
    /// Its body says it, or it needs no grant but any key.
    Later,
}

impl About {
    fn one(&self) -> Option<&str> {
        match self {
            About::Streams(names) if names.len() == 1 => names.first().map(String::as_str),
            _ => None,
        }
    }
}

async fn stream_of(
    api: &Api,
    caller: &Caller,
    rule: Rule,
    parts: &mut Parts,
) -> Result<About, Error> {
    if caller.is_unlimited()
        && matches!(rule.place, Place::Partition(_) | Place::Letter(_) | Place::Lease(_))
    {
        // Nothing that could be found would be refused.
        return Ok(About::Later);
    }
    let parameters = RawPathParams::from_request_parts(parts, &()).await.ok();
    let segment = |name: &str| {
        let mut all = parameters.as_ref()?.iter();
        all.find(|(n, _)| *n == name).map(|(_, value)| value.to_owned())
    };
    let one = |name: Option<String>| match name {
        Some(name) => About::Streams(vec![name]),
        None => About::Everything,
    };
    Ok(match rule.place {
        Place::Nobody | Place::Body | Place::AnyKey => About::Later,
        Place::Everything => About::Everything,
        Place::Path(name) => one(segment(name)),
        Place::Keys(name) => one(segment(name).map(|ns| keys_name(&ns))),
        Place::Query(name) => {
            let found = Parameters::parse(parts.uri.query().unwrap_or_default()).ok();
            one(found.and_then(|p| p.text(name).map(str::to_owned)))
        }
        Place::Partition(name) => {
            one(caller::stream_of_partition(api, &segment(name).unwrap_or_default()).await?)
        }
        Place::Letter(name) => {
            let letter = segment(name).unwrap_or_default();
            let partition = letter.split('.').nth(1).unwrap_or_default();
            one(caller::stream_of_partition(api, partition).await?)
        }
        Place::Lease(name) => {
            let lease = segment(name).unwrap_or_default();
            match api.engine().streams_of_lease(&lease).await? {
                Some(streams) if !streams.is_empty() => About::Streams(streams),
                _ => About::Everything,
            }
        }
    })
}

impl Api {
    /// Who presents what these headers hold.
    pub(crate) async fn caller(&self, headers: &HeaderMap) -> Result<Caller, Refusal> {
        let presented = presented_in(headers);
        if let (Some(key), Some(operator)) = (&presented, &self.settings().operator)
            && caller::same(key, operator.reveal())
        {
            return Ok(Caller::operator());
        }
        match self.engine().prove(presented.as_deref()).await {
            Ok(Proof::NoKeys) if self.settings().open_without_keys => Ok(Caller::anyone()),
            Ok(Proof::Of(credential)) => Ok(Caller::of(credential)),
            Ok(Proof::NoKeys | Proof::Refused) => Err(Refusal::unauthorized()),
            Err(e) => Err(Refusal::unavailable(&e)),
        }
    }

    /// Lets a request to become a WebSocket through, or answers it: before anything is said of the stream.
    ///
    /// # Errors
    /// The answer: 401, 403, 429 or 503.
    pub async fn admit_socket(
        &self,
        headers: &HeaderMap,
        path: &str,
        query: Option<&str>,
    ) -> Result<(), Box<Response>> {
        const ROUTE: &str = "/{stream}";
        // The shape of an answer to a socket is that of the control plane.
        let shape = crate::control::ROOT;
        let publishes = query
            .unwrap_or_default()
            .split('&')
            .any(|pair| pair.split('=').next().is_some_and(|name| name == "publish"));
        let action = if publishes { Action::Publish } else { Action::Read };
        let caller = match self.caller(headers).await {
            Ok(caller) => caller,
            Err(refusal) => {
                return Err(Box::new(
                    self.refused(None, action, Some(ROUTE), refusal, shape).await,
                ));
            }
        };
        let name = path.strip_prefix('/').unwrap_or(path);
        let name = percent_encoding::percent_decode_str(name).decode_utf8_lossy();
        if let Err(refusal) = caller.may(action, Target::Stream(&name)) {
            let caller = Some(&caller);
            return Err(Box::new(self.refused(caller, action, Some(ROUTE), refusal, shape).await));
        }
        let body = axum::body::Body::empty();
        match self.quotas().admit(self.now_us(), &caller, headers, body) {
            Ok(_) => Ok(()),
            Err(refusal) => Err(Box::new(refusal.into_response(shape))),
        }
    }

    /// Answers a refusal, and writes it down.
    async fn refused(
        &self,
        caller: Option<&Caller>,
        action: Action,
        route: Option<&str>,
        refusal: Refusal,
        path: &str,
    ) -> Response {
        let status = refusal.status().as_u16();
        if matches!(status, 401 | 403) {
            self.record(caller, action, route, refusal.stream(), status).await;
        }
        refusal.into_response(path)
    }

    /// Writes down what was done or refused. Of refusals of nobody in particular so many a second are written, so that
    /// whoever has no key cannot fill the log.
    async fn record(
        &self,
        caller: Option<&Caller>,
        action: Action,
        route: Option<&str>,
        stream: Option<&str>,
        outcome: u16,
    ) {
        if caller.is_none() && !self.quotas().admit_refusal(self.now_us()) {
            return;
        }
        let entry = AuditEntry {
            key: caller.and_then(Caller::id),
            action: action.as_str(),
            route: route.unwrap_or("unmatched"),
            stream,
            outcome,
        };
        self.engine().audit(&entry).await;
    }
}

/// The key that these headers hold.
fn presented_in(headers: &HeaderMap) -> Option<Cow<'_, str>> {
    presented(|name| headers.get(name).and_then(|value| value.to_str().ok()))
}

/// The method that a rule is looked up by: a HEAD is served by the handler of the GET.
fn method_of(method: &Method) -> &str {
    match method.as_str() {
        "HEAD" => "GET",
        other => other,
    }
}
