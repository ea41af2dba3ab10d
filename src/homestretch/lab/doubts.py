"""Named reasons not to trust a number, each with a hint; refusing or telling."""
