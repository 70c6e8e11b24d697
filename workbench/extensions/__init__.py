"""Extensions: packages that the core never imports. What each adds stands as data in its `face.toml`, which
`workbench.basics.extensions` reads."""
