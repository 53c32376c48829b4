"""Describe the patterns of the API's texts in words. Called by `messages`."""

WORDS = {
    r"^[a-z]([-a-z0-9]*[a-z0-9])?$": "use small letters, digits and dashes, a letter first, no dash last",
    r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$": "use small letters, digits and dashes, no dash first or last",
    r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$": "use small letters, digits, dashes and dots, a letter or digit "
    "first and last",
    r"^[a-z][a-z0-9_]*$": "use small letters, digits and underscores, a letter first",
    r"^[A-Za-z_][A-Za-z0-9_]*$": "use letters, digits and underscores, no digit first",
    r"^[-._a-zA-Z0-9]+$": "use letters, digits, dashes, underscores and dots",
    r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$": "use letters, digits, dashes, underscores and dots, a "
    "letter or digit first and last",
    r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$": "use letters, digits, dashes, underscores and dots, a "
    "letter or digit first and last",
    r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$": "write DOMAIN/NAME, e.g. "
    "huawei.com/Ascend910",
    r"^https?://[^\s/?#@]+([/?#][^\s]*)?$": "begin with http:// or https://, without spaces, user and "
    "password; tokenVariable names the variable of a token",
    r"^https?://[-A-Za-z0-9.:\[\]]+(/[-A-Za-z0-9_./]*)?$": "write http://HOST or https://HOST, where need be "
    "with port and path, without user and password",
    r"^(s3://[a-z0-9][-a-z0-9.]+|file:///[A-Za-z0-9_][-A-Za-z0-9_.]*)(/[A-Za-z0-9_][-A-Za-z0-9_.]*)*$": (
        "write s3://BUCKET/PREFIX or file:///PATH, without user, password, spaces and '..'"
    ),
    r"^[A-Za-z0-9_][-A-Za-z0-9_.]*(/[A-Za-z0-9_][-A-Za-z0-9_.]*)*$": "write a relative path, e.g. a/b, of "
    "letters, digits, dashes, underscores and dots, without '..'",
    r"^/[^:]*[^:/]$": "write an absolute path, e.g. /data, without colons, no slash last",
    r"^\S+$": "leave out the spaces",
    r"^[^\n]+$": "write it on one line",
    r"^[^\s/\\#?%:]+$": r"leave out spaces and / \ # ? % :",
}  # fmt: skip
"""Descriptions by pattern; names of extensions and quantities have separate messages."""
