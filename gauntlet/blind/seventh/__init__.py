"""Twenty programs written after the sixth set was measured, by somebody who had read no rule, test or guide."""
