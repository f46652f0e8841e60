//! A server for tests, on a port that is free: answers each request with the next answer, and keeps the requests.

use std::sync::{Arc, Mutex};

use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_sdk_dynamodb::config::{Credentials, SharedCredentialsProvider};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

pub(crate) struct Server {
    url: String,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// Each answer is a status line's end, and headers if there are any; an empty one is a connection that ends.
    pub(crate) async fn answering(answers: &[&str]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::<Mutex<Vec<String>>>::default();
        let kept = Arc::clone(&requests);
        let answers: Vec<String> = answers.iter().map(|a| (*a).to_owned()).collect();
        tokio::spawn(async move {
            for answer in answers {
                let (mut socket, _) = listener.accept().await.unwrap();
                let request = read(&mut socket).await;
                kept.lock().unwrap().push(request);
                if !answer.is_empty() {
                    let reply = format!(
                        "HTTP/1.1 {answer}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
                    );
                    socket.write_all(reply.as_bytes()).await.unwrap();
                }
            }
        });
        Self { url, requests }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The requests so far, as they came.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }

    /// A configuration whose services are all here.
    pub(crate) fn sdk(&self) -> SdkConfig {
        let credentials = Credentials::new("test", "test", None, None, "test");
        SdkConfig::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(Region::new("eu-central-1"))
            .credentials_provider(SharedCredentialsProvider::new(credentials))
            .endpoint_url(&self.url)
            .build()
    }
}

async fn read(socket: &mut TcpStream) -> String {
    let mut request = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let n = socket.read(&mut buffer).await.unwrap();
        request.extend_from_slice(&buffer[..n]);
        let text = String::from_utf8_lossy(&request).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head
                .lines()
                .filter_map(|line| line.split_once(": "))
                .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
                .and_then(|(_, length)| length.parse().ok())
                .unwrap_or(0);
            if body.len() >= length || n == 0 {
                return text;
            }
        }
    }
}
