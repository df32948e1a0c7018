"""Twenty programs written after the second set was measured, by somebody who knew neither rules nor results."""
