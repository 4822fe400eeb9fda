"""The parts of invar.audit: HTTP client, answers, perturbations, page. Standard library only."""
