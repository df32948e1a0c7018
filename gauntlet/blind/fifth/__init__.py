"""Twenty programs written after the fourth set was measured, by somebody who knew neither rules nor results."""
