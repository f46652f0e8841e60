//! The front page's prices are what the program prints today, and within what the design asks for.

use tidewheel_tests::price::{Prices, measure, table};

#[tokio::test(start_paused = true)]
async fn the_front_pages_prices_are_measured() {
    let (prices, rows) = (Prices::shipped(), measure().await);
    let table = table(&prices, &rows);
    let page = include_str!("../../README.md");
    assert!(page.contains(&table), "README.md does not have this table:\n{table}");
    assert!(page.contains(&prices.as_of), "README.md does not say of when the prices are");

    let each = |row: usize, column: usize| {
        let bill = rows[row].bills[column].expect("a bill");
        prices.dollars(&bill) / bill.of as f64 * 1e6
    };
    assert!(each(0, 2) <= 0.10, "pushed in batches of 100: {}", each(0, 2));
    // The aim is 2.60: rolls of the head's list, and a head that is over a kilobyte before each, are the rest.
    assert!(each(0, 0) <= 2.80, "pushed one by one: {}", each(0, 0));
}
