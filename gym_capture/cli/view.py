"""`gym-capture view`: the viewer in a browser, until Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import threading
import webbrowser

from gym_capture.cli.exits import Screen
from gym_capture.cli.opened import capture_place
from gym_capture.extras import require_extra


def view_command(directory: str | None, port: int, browser: bool, screen: Screen) -> None:
    """Serve, say where, and open a browser there."""
    require_extra("view", "the viewer")
    from gym_capture.viewer.server import serve

    # What cannot be opened is told here and not first on a page.
    place, told = capture_place(directory)

    def on_ready(url: str) -> None:
        if screen.as_json:
            screen.document({"url": url, "directory": told, "pid": os.getpid()})
        else:
            screen.out.print(f"{url}\nCtrl-C ends it.", soft_wrap=True, highlight=False)
            screen.stdout.flush()
        if browser:
            # A browser of the terminal would hold up the server until it is left.
            threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()

    asyncio.run(serve(place, port, on_ready))
