"""From a record to text: templates, filters, conversations and which of their words carry loss."""
