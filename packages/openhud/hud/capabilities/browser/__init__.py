"""The client of a browser, over the Chrome DevTools Protocol."""
