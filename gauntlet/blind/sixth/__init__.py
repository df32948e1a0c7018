"""Twenty programs written after the fifth set was measured, by somebody who had read no rule, test or guide."""
