"""Where triggers come from: files in an inbox, and requests on the control socket."""
