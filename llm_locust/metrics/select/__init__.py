"""Selection of the requests of a report: by an expression, from several runs, apart from first tries."""
