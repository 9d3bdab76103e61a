"""Fine-tuning language models: `sst2`, `snli`, `trec`, and any classification of texts.

`prompts` says how a row becomes a prompt, `rows` reads data files and `hub` data sets, `tokens` makes arrays of them,
`checkpoint` loads a model, `heads` says where its logits are taken, `classifier` is the module that is trained,
`adapters` trains a few weights beside it, `tasks` puts them together, `report` says what to know before training, and
`export` writes the trained model as a plain transformers folder.
"""
