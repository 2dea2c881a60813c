"""Self-contained HTML reports that work without JavaScript.

Modules:
    charts       where ticks, lines and marks of an SVG chart lie; templates/charts.html draws them
    image_cards  an image with its label and predictions
    images       images as data URIs
    render       Jinja2 environment with autoescape
    series       metrics over steps, thinned and smoothed
"""
