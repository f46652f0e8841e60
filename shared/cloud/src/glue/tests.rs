//! What becomes of a mirror, by what is there and by what the service answers.

use aws_sdk_glue::{
    config::retry::RetryConfig,
    error::ErrorMetadata,
    operation::{
        create_database::CreateDatabaseOutput,
        create_table::CreateTableOutput,
        delete_table::DeleteTableOutput,
        get_table::{GetTableError, GetTableOutput},
        update_table::UpdateTableOutput,
    },
    types::error::{
        AlreadyExistsException, ConcurrentModificationException, EntityNotFoundException,
    },
};
use aws_smithy_mocks::{Rule, RuleMode, mock, mock_client};

use super::*;

const PLACE: &str = "s3://bucket/tables/orders";

fn metadata(version: u64) -> String {
    format!("{PLACE}/metadata/{version:05}-0af3.metadata.json")
}

fn entry(version: u64) -> Entry {
    Entry {
        stream: "orders".to_owned(),
        stream_id: "id-1".to_owned(),
        location: PLACE.to_owned(),
        metadata: metadata(version),
        version,
        columns: vec![CatalogueColumn {
            name: "payload".to_owned(),
            hive_type: "string".to_owned(),
            field_id: 8,
            nullable: false,
        }],
    }
}

/// A table that is there: its parameters and its place.
fn there(parameters: &[(&str, &str)], place: &str) -> GetTableOutput {
    let mut table = Table::builder()
        .name("orders")
        .description("the shop's")
        .version_id("7")
        .storage_descriptor(StorageDescriptor::builder().location(place).build());
    for (name, value) in parameters {
        table = table.parameters(*name, *value);
    }
    GetTableOutput::builder().table(table.build().unwrap()).build()
}

/// Our own mirror at a version.
fn ours(version: u64) -> GetTableOutput {
    there(&[(METADATA, &metadata(version)), (MARK, "id-1"), ("owner", "shop")], PLACE)
}

fn nothing() -> GetTableError {
    GetTableError::EntityNotFoundException(missing())
}

fn missing() -> EntityNotFoundException {
    let code = ErrorMetadata::builder().code("EntityNotFoundException").build();
    EntityNotFoundException::builder().meta(code).build()
}

async fn mirror(rules: &[&Rule], version: u64) -> Result<Mirrored, CatalogueError> {
    let client = mock_client!(aws_sdk_glue, RuleMode::Sequential, rules, |config| {
        config.retry_config(RetryConfig::disabled())
    });
    Glue::with_client(client, "streams").mirror(&entry(version)).await
}

fn finds(found: impl Fn() -> GetTableOutput + Send + Sync + 'static) -> Rule {
    mock!(Client::get_table)
        .match_requests(|r| r.database_name() == Some("streams") && r.name() == Some("orders"))
        .then_output(found)
}

fn finds_nothing() -> Rule {
    mock!(Client::get_table).then_error(nothing)
}

#[tokio::test]
async fn an_absent_table_is_made_as_readers_of_iceberg_expect_it() {
    let get = finds_nothing();
    let create = mock!(Client::create_table)
        .match_requests(|r| {
            let table = r.table_input().unwrap();
            let parameters = table.parameters().unwrap();
            let storage = table.storage_descriptor().unwrap();
            table.name() == "orders"
                && table.table_type() == Some("EXTERNAL_TABLE")
                && parameters[TABLE_TYPE] == "ICEBERG"
                && parameters[METADATA] == metadata(3)
                && parameters[MARK] == "id-1"
                && !parameters.contains_key(PREVIOUS)
                && storage.location() == Some(PLACE)
                && storage.columns()[0].name() == "payload"
                && storage.columns()[0].r#type() == Some("string")
        })
        .then_output(|| CreateTableOutput::builder().build());
    assert_eq!(mirror(&[&get, &create], 3).await, Ok(Mirrored::Created));
}

#[tokio::test]
async fn an_older_version_is_moved_if_nobody_has_written_since_and_what_people_added_is_kept() {
    let get = finds(|| ours(2));
    let update = mock!(Client::update_table)
        .match_requests(|r| {
            let table = r.table_input().unwrap();
            let parameters = table.parameters().unwrap();
            r.version_id() == Some("7")
                && r.skip_archive() == Some(true)
                && parameters[METADATA] == metadata(3)
                && parameters[PREVIOUS] == metadata(2)
                && parameters["owner"] == "shop"
                && table.description() == Some("the shop's")
        })
        .then_output(|| UpdateTableOutput::builder().build());
    assert_eq!(mirror(&[&get, &update], 3).await, Ok(Mirrored::Moved));
}

#[tokio::test]
async fn the_same_and_a_newer_version_stay() {
    assert_eq!(mirror(&[&finds(|| ours(3))], 3).await, Ok(Mirrored::Unchanged));
    assert_eq!(mirror(&[&finds(|| ours(4))], 3).await, Ok(Mirrored::Newer));
}

#[tokio::test]
async fn what_is_not_ours_stays() {
    let unmarked = finds(|| there(&[(METADATA, &metadata(1))], PLACE));
    assert_eq!(mirror(&[&unmarked], 3).await, Ok(Mirrored::Foreign));
    let elsewhere =
        finds(|| there(&[(METADATA, &metadata(1)), (MARK, "id-1")], "s3://another/tables/orders"));
    assert_eq!(mirror(&[&elsewhere], 3).await, Ok(Mirrored::Foreign));
    let placeless = finds(|| {
        GetTableOutput::builder()
            .table(Table::builder().name("orders").parameters(MARK, "id-1").build().unwrap())
            .build()
    });
    assert_eq!(mirror(&[&placeless], 3).await, Ok(Mirrored::Foreign));
}

#[tokio::test]
async fn the_stream_that_was_made_again_goes_on_with_the_mirror() {
    let get = finds(|| there(&[(METADATA, &metadata(2)), (MARK, "id-0")], PLACE));
    let update = mock!(Client::update_table)
        .match_requests(|r| r.table_input().unwrap().parameters().unwrap()[MARK] == "id-1")
        .then_output(|| UpdateTableOutput::builder().build());
    assert_eq!(mirror(&[&get, &update], 3).await, Ok(Mirrored::Moved));
}

#[tokio::test]
async fn who_loses_against_another_sealer_looks_again() {
    let conflict = || {
        UpdateTableError::ConcurrentModificationException(
            ConcurrentModificationException::builder().build(),
        )
    };
    // The other told an older version: ours is still news.
    let (first, lost) = (finds(|| ours(1)), mock!(Client::update_table).then_error(conflict));
    let second = finds(|| ours(2));
    let won = mock!(Client::update_table).then_output(|| UpdateTableOutput::builder().build());
    assert_eq!(mirror(&[&first, &lost, &second, &won], 3).await, Ok(Mirrored::Moved));
    // The other told a newer one.
    let (first, lost) = (finds(|| ours(1)), mock!(Client::update_table).then_error(conflict));
    assert_eq!(mirror(&[&first, &lost, &finds(|| ours(4))], 3).await, Ok(Mirrored::Newer));
    // The other made the table.
    let made =
        || CreateTableError::AlreadyExistsException(AlreadyExistsException::builder().build());
    let (first, lost) = (finds_nothing(), mock!(Client::create_table).then_error(made));
    assert_eq!(mirror(&[&first, &lost, &finds(|| ours(3))], 3).await, Ok(Mirrored::Unchanged));
    // Somebody dropped it.
    let dropped = || UpdateTableError::EntityNotFoundException(missing());
    let (first, lost) = (finds(|| ours(1)), mock!(Client::update_table).then_error(dropped));
    let made = mock!(Client::create_table).then_output(|| CreateTableOutput::builder().build());
    let rules = [&first, &lost, &finds_nothing(), &made];
    assert_eq!(mirror(&rules, 3).await, Ok(Mirrored::Created));
}

#[tokio::test]
async fn who_always_loses_gives_up_and_says_so() {
    let conflict = || {
        UpdateTableError::ConcurrentModificationException(
            ConcurrentModificationException::builder().build(),
        )
    };
    let gets: Vec<Rule> = (0..ATTEMPTS).map(|_| finds(|| ours(1))).collect();
    let updates: Vec<Rule> =
        (0..ATTEMPTS).map(|_| mock!(Client::update_table).then_error(conflict)).collect();
    let rules: Vec<&Rule> = gets.iter().zip(&updates).flat_map(|(g, u)| [g, u]).collect();
    let error = mirror(&rules, 3).await.unwrap_err();
    assert!(error.to_string().contains("`orders` was written by others"), "{error}");
}

#[tokio::test]
async fn a_database_that_is_missing_is_made() {
    let missing = || CreateTableError::EntityNotFoundException(missing());
    let refused = mock!(Client::create_table).then_error(missing);
    let database = mock!(Client::create_database)
        .match_requests(|r| r.database_input().unwrap().name() == "streams")
        .then_output(|| CreateDatabaseOutput::builder().build());
    let made = mock!(Client::create_table).then_output(|| CreateTableOutput::builder().build());
    let (first, second) = (finds_nothing(), finds_nothing());
    let rules = [&first, &refused, &database, &second, &made];
    assert_eq!(mirror(&rules, 1).await, Ok(Mirrored::Created));
}

#[tokio::test]
async fn a_lost_reply_and_a_throttled_call_are_errors_and_the_next_look_tells_what_happened() {
    let get = finds(|| ours(2));
    let lost = mock!(Client::update_table).sequence().http_status(503, None).build();
    let error = mirror(&[&get, &lost], 3).await.unwrap_err();
    assert!(error.to_string().contains("UpdateTable: 503"), "{error}");
    // It had arrived.
    assert_eq!(mirror(&[&finds(|| ours(3))], 3).await, Ok(Mirrored::Unchanged));

    let throttled = || {
        let code = ErrorMetadata::builder().code("ThrottlingException").build();
        GetTableError::generic(code)
    };
    let error = mirror(&[&mock!(Client::get_table).then_error(throttled)], 3).await.unwrap_err();
    assert!(error.to_string().contains("ThrottlingException"), "{error}");
}

#[tokio::test]
async fn a_mirror_is_forgotten_if_it_is_ours() {
    let forget = async |rules: &[&Rule]| {
        let client = mock_client!(aws_sdk_glue, RuleMode::Sequential, rules, |config| {
            config.retry_config(RetryConfig::disabled())
        });
        Glue::with_client(client, "streams").forget(PLACE).await
    };
    let delete = mock!(Client::delete_table)
        .match_requests(|r| r.database_name() == Some("streams") && r.name() == Some("orders"))
        .then_output(|| DeleteTableOutput::builder().build());
    assert_eq!(forget(&[&finds(|| ours(3)), &delete]).await, Ok(()));
    assert_eq!(delete.num_calls(), 1);
    assert_eq!(forget(&[&finds_nothing()]).await, Ok(()));
    assert_eq!(forget(&[&finds(|| there(&[(METADATA, &metadata(1))], PLACE))]).await, Ok(()));
    let lost = mock!(Client::delete_table).sequence().http_status(503, None).build();
    assert!(forget(&[&finds(|| ours(3)), &lost]).await.is_err());
}

#[test]
fn names_are_those_that_athena_takes_and_no_two_meet() {
    let name = |directory: &str| table_name(&format!("s3://bucket/tables/{directory}"));
    for plain in ["orders", "orders_2", "2026", "_x"] {
        assert_eq!(name(plain), plain);
    }
    let others = [
        "Orders",
        "ORDERS",
        "orders.v2",
        "orders-v2",
        "a!20b",
        "B!c3!bccher",
        "a!2fb",
        "a.b",
        "!2e",
    ];
    let mut names: Vec<String> = others.iter().map(|directory| name(directory)).collect();
    assert!(names[0].starts_with("orders_") && names[2].starts_with("orders_v2_"), "{names:?}");
    assert!(names[5].starts_with("b_cher_"), "{names:?}");
    assert!(names[8].starts_with("stream_"), "{names:?}");
    names.push(name(&"x".repeat(129)));
    names.push(name(&format!("{}y", "x".repeat(129))));
    for name in &names {
        assert!(name.len() <= NAME_CHARACTERS, "{name}");
        assert!(
            name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_'),
            "{name}"
        );
    }
    let count = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), count, "{names:?}");
}

#[test]
fn a_version_is_what_a_metadata_files_name_begins_with() {
    assert_eq!(version_of(&metadata(12)), Some(12));
    assert_eq!(version_of("s3://b/t/metadata/100000-x.metadata.json"), Some(100_000));
    assert_eq!(version_of("s3://b/t/metadata/v3.metadata.json"), None);
}
