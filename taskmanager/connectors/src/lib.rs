//! Sources, sinks and formats, one folder per outside system.
