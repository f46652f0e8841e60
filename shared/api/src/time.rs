//! Times on the wire: ISO 8601 in UTC, with six digits of a second and `Z`.

use jiff::{Timestamp, civil, tz::Offset};

/// Bytes of a formatted time: `2026-11-29T16:58:53.421599Z`.
const LENGTH: usize = 27;

/// The last microsecond that four digits of a year can show.
const MAX_US: i64 = 253_402_300_799_999_999;

/// Formats a time in µs since 1970. A time outside the years 1970 to 9999 shows as the nearest end.
pub(crate) fn format(us: i64) -> [u8; LENGTH] {
    let us = us.clamp(0, MAX_US) as u64;
    let (seconds, fraction) = (us / 1_000_000, us % 1_000_000);
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Days to a date by the usual arithmetic of 400-year eras that begin in March.
    let z = days + 719_468;
    let (era, day_of_era) = (z / 146_097, z % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);

    let mut out = *b"0000-00-00T00:00:00.000000Z";
    let mut put = |at: usize, digits: usize, mut value: u64| {
        for place in out[at..at + digits].iter_mut().rev() {
            *place = b'0' + (value % 10) as u8;
            value /= 10;
        }
    };
    put(0, 4, year);
    put(5, 2, month);
    put(8, 2, day);
    put(11, 2, second / 3_600);
    put(14, 2, second / 60 % 60);
    put(17, 2, second % 60);
    put(20, 6, fraction);
    out
}

/// Reads an ISO 8601 time, in µs since 1970. A time without an offset is one in UTC.
pub(crate) fn parse(text: &str) -> Option<i64> {
    let text = text.trim();
    if let Ok(time) = text.parse::<Timestamp>() {
        return Some(time.as_microsecond());
    }
    let naive = text.parse::<civil::DateTime>().ok()?;
    Some(Offset::UTC.to_timestamp(naive).ok()?.as_microsecond())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        let show = |us| String::from_utf8(format(us).to_vec()).unwrap();
        assert_eq!(show(0), "1970-01-01T00:00:00.000000Z");
        assert_eq!(show(1_795_971_533_421_599), "2026-11-29T16:58:53.421599Z");
        assert_eq!(show(-5), "1970-01-01T00:00:00.000000Z");
        assert_eq!(show(i64::MAX), "9999-12-31T23:59:59.999999Z");
        // Every few days of five centuries, and the days around each leap day, against the calendar library.
        for day in (0..180_000).step_by(7).chain(11_000..12_000) {
            let us = day * 86_400_000_000 + 45_296_000_007;
            assert_eq!(parse(&show(us)), Some(us), "{}", show(us));
            let expected = Timestamp::from_microsecond(us).unwrap().to_string();
            assert_eq!(show(us), expected, "day {day}");
        }
    }

    #[test]
    fn times_are_read_with_and_without_an_offset() {
        let us = Some(1_795_971_533_421_000);
        for text in [
            "2026-11-29T16:58:53.421Z",
            "2026-11-29T17:58:53.421+01:00",
            "2026-11-29T16:58:53.421",
            " 2026-11-29 16:58:53.421000 ",
        ] {
            assert_eq!(parse(text), us, "{text}");
        }
        for text in ["", "now", "yesterday", "2026-13-01T00:00:00Z", "1795971533"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
