"""Program owners: they order a program's events, commit them and push them to gateways.

`sequencer` is the pure order of things; `actor` runs it as a Ray actor over `broker.storage.journal`;
`client` is what the doors publish with; `feed` is what a gateway follows topics with.
"""
