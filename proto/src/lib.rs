//! Wire types and their conversion to the words of the domain.
