"""How answers look: tables and pictures for notebooks, figures, progress. Plain values come in; nothing is decided."""
