//! Document to checked job graph; compiles expressions. Every user mistake is found here.
