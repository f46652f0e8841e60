//! The cloud's services behind the library's traits.
