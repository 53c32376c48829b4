"""Connections of the dock, at both ends: frames, columns on the wire, sockets, mapped memory."""
