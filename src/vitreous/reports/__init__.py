"""Self-contained HTML reports that work without JavaScript.

Modules:
    charts  SVG charts
    html    page frame
    images  images as data URIs
    render  Jinja2 environment with autoescape
    series  metrics over steps, thinned and smoothed
"""
