// Owns the precompiled header of the tests (tests/meson.build).
