"""Where rows come from: files, folders, tables, archives, the Hub, and what becomes of them before they are numbers."""
