"""The verbs of longspan, one public function each, importable from `longspan` itself."""
