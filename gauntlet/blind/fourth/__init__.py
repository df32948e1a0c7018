"""Twenty programs written after the third set was measured, by somebody who knew neither rules nor results."""
