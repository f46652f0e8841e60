//! The deployed store on the emulators that `tests/emulator/with` starts.

use tidewheel_store::{
    DynamoDb, Env,
    dynamodb::{
        Options,
        aws_sdk_dynamodb::{
            self,
            config::{BehaviorVersion, Credentials, Region},
            types::{
                AttributeDefinition, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType,
            },
        },
        aws_sdk_s3,
    },
};

/// The variables by which the emulators are found.
const DYNAMODB: &str = "TIDEWHEEL_TEST_DYNAMODB";
const S3: &str = "TIDEWHEEL_TEST_S3";

/// A table and a bucket that nobody else has.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// The name of both.
    pub(crate) name: String,
}

fn endpoint(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| {
        panic!("{variable} is not set: run this under tests/emulator/with, or tests/run emulator")
    })
}

fn credentials() -> Credentials {
    Credentials::new("test", "test", None, None, "test")
}

/// A client of the emulator, for the runtime that it is used on.
pub(crate) fn dynamo() -> aws_sdk_dynamodb::Client {
    let config = aws_sdk_dynamodb::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("us-east-1"))
        .credentials_provider(credentials())
        .endpoint_url(endpoint(DYNAMODB));
    aws_sdk_dynamodb::Client::from_conf(config.build())
}

fn s3() -> aws_sdk_s3::Client {
    let config = aws_sdk_s3::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("us-east-1"))
        .credentials_provider(credentials())
        .endpoint_url(endpoint(S3))
        .force_path_style(true);
    aws_sdk_s3::Client::from_conf(config.build())
}

impl Place {
    /// Makes the table and the bucket.
    pub(crate) async fn make() -> Self {
        let name = format!("t{}", Env::system().token());
        let attribute = |name: &str| {
            AttributeDefinition::builder()
                .attribute_name(name)
                .attribute_type(ScalarAttributeType::S)
                .build()
                .expect("an attribute")
        };
        let key = |name: &str, of| {
            KeySchemaElement::builder().attribute_name(name).key_type(of).build().expect("a key")
        };
        dynamo()
            .create_table()
            .table_name(&name)
            .billing_mode(BillingMode::PayPerRequest)
            .attribute_definitions(attribute("pk"))
            .attribute_definitions(attribute("sk"))
            .key_schema(key("pk", KeyType::Hash))
            .key_schema(key("sk", KeyType::Range))
            .send()
            .await
            .expect("a table");
        s3().create_bucket().bucket(&name).send().await.expect("a bucket");
        Self { name }
    }

    /// The store there, over clients of its own: each belongs to the runtime that it is used on.
    pub(crate) fn store(&self) -> DynamoDb {
        DynamoDb::new(dynamo(), s3(), Options::new(&self.name, &self.name))
    }
}
