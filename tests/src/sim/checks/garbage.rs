//! Garbage: every blob that a head can reach is there, before and after collecting, and what nothing reaches goes.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tidewheel_engine::limits;
use tidewheel_store::{BlobName, Item, Key, Value};

use super::{Found, Logs};
use crate::sim::{World, keeper::STREAMS, publisher::ROWS, world::Chance};

/// Bytes that a head may have: attributes and values.
const HEAD_BYTES: usize = 4096;

pub(super) async fn check(world: &World, chance: &mut Chance, logs: &Logs) -> Found {
    let mut found = Found::new("garbage");
    reachable(world, &mut found);
    // Everything that was ever under way is older than the grace now.
    tokio::time::sleep(limits::BLOB_GRACE + Duration::from_secs(60)).await;
    let engine = world.clean_engine(chance.seed());
    for stream in STREAMS.into_iter().chain([ROWS]) {
        if let Err(e) = engine.collect(stream).await {
            found.add(format!("collecting {stream}: {e}"));
        }
    }
    let reachable = reachable(world, &mut found);
    let owners: BTreeSet<&str> = reachable.iter().map(|n| n.owner.as_str()).collect();
    let items = world.memory.items();
    let partitions: BTreeSet<String> = items
        .keys()
        .filter(|k| k.sk == "head")
        .filter_map(|k| Some(k.pk.strip_prefix("p#")?.replace('-', "")))
        .collect();
    let books: BTreeSet<String> =
        items.iter().filter_map(|(k, i)| book(k, i)).map(|b| b.owner).collect();
    let unreachable: Vec<String> = world
        .memory
        .blobs()
        .into_keys()
        .filter(|n| owners.contains(n.owner.as_str()))
        .filter(|n| partitions.contains(&n.owner) || books.contains(&n.owner))
        .filter(|n| !reachable.contains(n))
        .map(|n| n.to_string())
        .collect();
    if !unreachable.is_empty() {
        found.add(format!(
            "{} blobs of partitions and declarations stay for ever: {:?}",
            unreachable.len(),
            unreachable.first()
        ));
    }
    let mut after = Found::new("garbage");
    let again = Logs::read(&engine, &mut after).await;
    for violation in after.into_violations() {
        found.add(format!("after collecting: {}", violation.detail));
    }
    if again != *logs {
        found.add("the logs are not what they were before collecting");
    }
    found
}

/// The book that a declared stream's record names.
fn book(key: &Key, item: &Item) -> Option<BlobName> {
    let id = item.str("id").filter(|_| key.sk == "stream")?;
    Some(BlobName::new(format!("b{}", id.replace('-', "")), item.str("book")?))
}

/// Walks every head and page; answers the blobs that they name, after checking that all of them are there.
fn reachable(world: &World, found: &mut Found) -> BTreeSet<BlobName> {
    let items = world.memory.items();
    let blobs = world.memory.blobs();
    let mut named: BTreeMap<BlobName, String> = BTreeMap::new();
    for (key, item) in &items {
        let is_head = key.sk == "head" || key.sk == "cursor" || key.sk == "table";
        if is_head && item.size() > HEAD_BYTES {
            found.add(format!("{key} has {} bytes", item.size()));
        }
        if let Some(book) = book(key, item) {
            named.insert(book, key.to_string());
        }
        if let Some(partition) = key.pk.strip_prefix("p#") {
            let owner = partition.replace('-', "");
            for id in descriptors(item).into_iter().map(|(id, _)| id) {
                named.insert(BlobName::new(owner.as_str(), id), key.to_string());
            }
            if let Some(id) = item.str("ids") {
                named.insert(BlobName::new(owner.as_str(), id), key.to_string());
            }
            if key.sk == "head" {
                joined(&items, key, item, found);
            }
        } else if key.pk.starts_with("qs#") {
            let ids =
                item.list("deltas").iter().filter_map(text).filter_map(|t| t.split(' ').next());
            for id in item.str("snapshot").into_iter().chain(ids) {
                // The owner is derived from the query and the partition; the id alone is unique.
                match blobs.keys().find(|b| b.id == id) {
                    Some(name) => drop(named.insert(name.clone(), key.to_string())),
                    None => found.add(format!("{key} names the blob {id}, which is missing")),
                }
            }
        } else if let Some(stream) = key.pk.strip_prefix("t#") {
            let owner = format!("t-{}", stream.replace('-', ""));
            for id in item.list("position_blobs").iter().filter_map(text) {
                named.insert(BlobName::new(owner.as_str(), id), key.to_string());
            }
        } else if let Some(stream) = key.pk.strip_prefix("d#") {
            let owner = format!("d{}", stream.replace('-', ""));
            if let Some(id) = item.str("blob") {
                named.insert(BlobName::new(owner, id), key.to_string());
            }
        }
    }
    for (name, by) in &named {
        if !blobs.contains_key(name) {
            found.add(format!("{by} names the blob {name}, which is missing"));
        }
    }
    named.into_keys().collect()
}

/// Pages and head join without a gap.
fn joined(items: &BTreeMap<Key, Item>, key: &Key, head: &Item, found: &mut Found) {
    let int = |item: &Item, name: &str| item.int(name).unwrap_or(-1);
    let pages = items
        .range(Key::new(key.pk.as_str(), "page#")..)
        .take_while(|(k, _)| k.pk == key.pk && k.sk.starts_with("page#"));
    let mut next = None;
    for (page_key, page) in pages {
        if next.is_some_and(|n| n != int(page, "base")) {
            found.add(format!("{page_key} does not begin where the page before ends"));
        }
        next = Some(int(page, "tail"));
    }
    if next.is_some_and(|n| n != int(head, "base")) {
        found.add(format!("{key} does not begin where its last page ends"));
    }
    let counted: i64 = descriptors(head).iter().map(|d| d.1).sum();
    if int(head, "base") + counted != int(head, "tail") {
        found.add(format!("{key}: its segments do not count up to its tail"));
    }
}

/// Blob and records of each descriptor in a head or a page.
fn descriptors(item: &Item) -> Vec<(&str, i64)> {
    let parse = |text: &'_ str| -> Option<(usize, i64)> {
        let mut parts = text.split(' ');
        let id = parts.next()?.len();
        Some((id, parts.next()?.parse().ok()?))
    };
    item.list("segs")
        .iter()
        .filter_map(text)
        .filter_map(|t| parse(t).map(|(id, count)| (&t[..id], count)))
        .collect()
}

fn text(value: &Value) -> Option<&str> {
    if let Value::Str(text) = value { Some(text) } else { None }
}
