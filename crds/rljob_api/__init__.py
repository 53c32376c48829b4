"""The contract of RLJob: models of the resource, rules, topology arithmetic. No torch, no ray."""
