//! Prints what Tidewheel costs: `cargo run -p tidewheel-tests --bin price`.

use tidewheel_tests::price::{Prices, measure, table};

fn main() {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let rows = match runtime {
        Ok(runtime) => runtime.block_on(measure()),
        Err(e) => {
            eprintln!("no runtime: {e}");
            std::process::exit(1);
        }
    };
    let prices = Prices::shipped();
    println!("{}, prices of {} ({})\n", prices.region, prices.as_of, prices.sources);
    print!("{}", table(&prices, &rows));
}
