"""Where rows come from (files, folders, tables, archives, the Hub), and how they are checked, split and cached."""
