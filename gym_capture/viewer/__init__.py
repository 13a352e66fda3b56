"""A local web page that shows a capture directory: read-only, loopback only, nothing from elsewhere.

`server` listens, `gate` lets in who knows the token, `app` answers with what `views` makes of `captured`, and
`static` holds the page. Every text that was captured leaves here through `shown`, and the page puts it into the
document as text.
"""
