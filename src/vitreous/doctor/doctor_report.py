"""The page: one file that needs nothing else, neither a script nor a server, and stays small however much there is to tell.

Names of files and classes come from strangers' disks; everything passes through `text`, which escapes it, and the page
forbids itself to load or run anything.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitreous.doctor.charts import class_bars, size_cloud
from vitreous.doctor.finding_types import KINDS, Kind
from vitreous.doctor.findings import Demand, Finding
from vitreous.doctor.preview import Preview
from vitreous.doctor.scan import Scan
from vitreous.doctor.thumbnails import SIDE, jpeg, thumbnails
from vitreous.reports.html import page, scrolled, text

SHOWN = 100  # findings of one kind on the page; findings.jsonl has all
PICTURES = 8  # thumbnails of one finding
LISTED = 40  # paths of one finding


@dataclass(frozen=True, eq=False)
class Report:
    scan: Scan
    against: Scan | None
    findings: Sequence[Finding]
    summary: Mapping[str, Any]
    previews: Sequence[Preview]
    demand: Demand | None

    def html(self, workers: int = 0) -> str:
        shown = {kind: of_kind[:SHOWN] for kind, of_kind in self._by_kind().items()}
        ours = (item for some in shown.values() for finding in some for item in finding.items[:PICTURES])
        small = thumbnails(self.scan, ours, workers)
        theirs: dict[int, bytes] = {}
        if self.against is not None:
            wanted = (item for some in shown.values() for finding in some for item in finding.others[:PICTURES])
            theirs = thumbnails(self.against, wanted, workers)
        body = "\n".join(self._body(shown, small, theirs))
        return page(f"{self.scan.dataset.where}: doctor’s report", body)

    def _by_kind(self) -> dict[str, list[Finding]]:
        grouped: dict[str, list[Finding]] = {}
        for finding in self.findings:
            grouped.setdefault(finding.kind, []).append(finding)
        return {kind: grouped[kind] for kind in KINDS if kind in grouped}

    # Sections ---------------------------------------------------------------------------------------------------------------

    def _body(self, shown: Mapping[str, Sequence[Finding]], small: dict[int, bytes], theirs: dict[int, bytes]) -> Iterator[str]:
        yield '<a class="skip" href="#findings">Skip to the findings</a>'
        yield f"<header><h1>Doctor’s report: {text(self.scan.dataset.where)}</h1>"
        bad = self.summary["corrupt"]
        yield f'<p class="verdict {"bad" if bad else "good"}">{text(verdict(self.findings))}</p>'
        yield f'<p class="quiet">{text(facts(self.scan, self.against))}</p></header><main>'
        grouped = self._by_kind()
        if grouped:
            yield "<h2>What to do</h2>" + self._todo(grouped)
            yield '<h2 id="findings">Findings</h2>' + self._table(grouped)
            for kind, some in shown.items():
                yield self._kind(KINDS[kind], grouped[kind], some, small, theirs)
        else:
            yield '<h2 id="findings">Findings</h2><p>None.</p>'
        if self.scan.dataset.classes and any(sum(s["classes"].values()) for s in self.summary["splits"].values()):
            counts = {split: about["classes"] for split, about in self.summary["splits"].items()}
            yield "<h2>Classes</h2>" + class_bars(counts)
        yield "<h2>Sizes and formats</h2>" + self._sizes()
        yield "<h2>Colours</h2>" + self._channels()
        yield "<h2>What the preprocessing does</h2>" + self._preprocessing()
        yield (
            f"</main><footer>Made by vitreous {text(self.summary['version'])}. All findings are in findings.jsonl beside this "
            "page, the numbers in summary.json.</footer>"
        )

    def _todo(self, grouped: Mapping[str, Sequence[Finding]]) -> str:
        worst = [kind for kind, some in grouped.items() if any(f.corrupts for f in some)]
        rest = [kind for kind in grouped if kind not in worst]
        parts = []
        if worst:
            items = (
                f'<li><a href="#{kind}">{text(KINDS[kind].title)}</a> ({len(grouped[kind]):,}). {_advice(KINDS[kind])}</li>'
                for kind in worst
            )
            parts.append(f'<p>Before you trust a result:</p><ol class="todo">{"".join(items)}</ol>')
        if rest:
            links = ", ".join(
                f'<a href="#{kind}">{text(KINDS[kind].title[0].lower() + KINDS[kind].title[1:])}</a>' for kind in rest
            )
            parts.append(f"<p>{'Then w' if worst else 'W'}orth a look: {links}.</p>")
        return "".join(parts)

    def _table(self, grouped: Mapping[str, Sequence[Finding]]) -> str:
        rows = []
        for kind, some in grouped.items():
            images = sum(finding.count for finding in some)
            rows.append(
                f'<tr><th scope="row"><a href="#{kind}">{text(kind)}</a></th><td class="number">{len(some):,}</td>'
                f'<td class="number">{f"{images:,}" if images else "–"}</td><td>{_mark(some)}</td></tr>'
            )
        return scrolled(
            "findings by kind",
            '<table><thead><tr><th scope="col">kind</th><th scope="col" class="number">findings</th>'
            '<th scope="col" class="number">images</th><th scope="col">weight</th></tr></thead>'
            f"<tbody>{''.join(rows)}</tbody></table>",
        )

    def _kind(
        self, kind: Kind, every: Sequence[Finding], some: Sequence[Finding], small: dict[int, bytes], theirs: dict[int, bytes]
    ) -> str:
        items = "".join(self._finding(finding, small, theirs) for finding in some)
        more = f'<p class="quiet">{len(every) - len(some):,} more in findings.jsonl.</p>' if len(every) > len(some) else ""
        return (
            f'<details class="kind" id="{kind.name}"{" open" if any(f.corrupts for f in every) else ""}>'
            f'<summary><h3>{text(kind.title)}</h3> <span class="quiet">{len(every):,}</span> {_mark(every)}</summary>'
            f'<p>{text(kind.meaning)} <span class="quiet">{_advice(kind)}</span></p>'
            f'<ul class="findings">{items}</ul>{more}</details>'
        )

    def _finding(self, finding: Finding, small: dict[int, bytes], theirs: dict[int, bytes]) -> str:
        about = [] if finding.labels else [*finding.splits, *([f"{finding.count:,} images"] if finding.count > 1 else [])]
        said = f'<p class="said">{text(finding.detail)} <span class="quiet">{text(", ".join(about))}</span></p>'
        ours = [k for k, item in enumerate(finding.items) if item in small][:PICTURES]
        others = [k for k, item in enumerate(finding.others) if item in theirs][:PICTURES]
        figures = [self._figure(self.scan, finding, k, finding.items[k], small) for k in ours]
        if self.against is not None:
            first = len(finding.items)
            figures += [self._figure(self.against, finding, first + k, finding.others[k], theirs) for k in others]
            ours += [first + k for k in others]
        left = [path for k, path in enumerate(finding.paths) if k not in ours]
        hidden = finding.count - len(figures) - len(left)
        pictures = f'<div class="pictures">{"".join(figures)}</div>' if figures else ""
        broad = ' class="broad"' if len(figures) > 2 else ""
        return f"<li{broad}>{said}{pictures}{_listed(left, max(0, hidden))}</li>"

    def _figure(self, scan: Scan, finding: Finding, number: int, item: int, small: dict[int, bytes]) -> str:
        record, path = scan.records[item], finding.paths[number]
        size = f"{record['width']} × {record['height']}"
        label = " + ".join(finding.labels[number]) if finding.labels else ""
        split = scan.where(item)[0]
        about = " · ".join(part for part in (split if len(finding.splits) > 1 else "", size) if part)
        picture = _image(small[item], path, tiny=max(record["width"], record["height"]) < 64)
        return (
            f"<figure>{picture}<figcaption>"
            + (f'<span class="label">{text(label)}</span><br>' if label else "")
            + text(path)
            + (f'<br><span class="quiet">{text(about)}</span>' if about else "")
            + "</figcaption></figure>"
        )

    def _sizes(self) -> str:
        usable = self.scan.records[self.scan.usable()]
        if not len(usable):
            return "<p>No picture could be read.</p>"
        target = (self.demand.height, self.demand.width) if self.demand else None
        cloud = size_cloud(usable["width"].astype(np.int64), usable["height"].astype(np.int64), target)
        rows = []
        for split, about in self.summary["splits"].items():
            if "sizes" not in about:
                continue
            sides = "".join(
                f"<td>{about['sizes'][side]['smallest']:,} / {about['sizes'][side]['median']:,} / "
                f"{about['sizes'][side]['largest']:,}</td>"
                for side in ("width", "height")
            )
            kinds = "".join(
                f"<td class='names'>{text(', '.join(f'{name} {n:,}' for name, n in about[what].items()))}</td>"
                for what in ("formats", "modes")
            )
            rows.append(f'<tr><th scope="row">{text(split)}</th><td class="number">{about["images"]:,}</td>{sides}{kinds}</tr>')
        head = "".join(
            f'<th scope="col">{name}</th>'
            for name in ("split", "images", "width: smallest / median / largest", "height", "formats", "modes")
        )
        said = (
            "Each point is a size; larger ones are more frequent. The corner is the size that the preprocessing asks for: "
            "what lies left of it or below is smaller."
        )
        table = f'<table class="sizes"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
        return f'{cloud}<p class="quiet">{said}</p>{scrolled("sizes and formats", table)}'

    def _channels(self) -> str:
        rows = []
        for split, about in self.summary["splits"].items():
            if "channels" not in about:
                continue
            mean, deviation = about["channels"]["mean"], about["channels"]["deviation"]
            colour = ",".join(str(round(255 * value)) for value in mean)
            numbers = "".join(f'<td class="number">{m:.3f} ± {d:.3f}</td>' for m, d in zip(mean, deviation, strict=True))
            rows.append(
                f'<tr><th scope="row"><span class="swatch" style="background:rgb({colour})"></span> {text(split)}</th>'
                f"{numbers}</tr>"
            )
        if not rows:
            return "<p>No picture could be read.</p>"
        table = (
            '<table><thead><tr><th scope="col">split</th><th scope="col" class="number">red</th>'
            '<th scope="col" class="number">green</th><th scope="col" class="number">blue</th></tr></thead>'
            f"<tbody>{''.join(rows)}</tbody></table>"
        )
        said = (
            "Mean ± standard deviation of the pixels, 0 to 1, every picture counted alike, on reduced pictures (which lowers "
            "the deviation a little). Splits that differ much come from different places."
        )
        return f'{scrolled("colours", table)}<p class="quiet">{said}</p>'

    def _preprocessing(self) -> str:
        parts = [f"<p><code>{text(self.summary['preprocess'])}</code></p>"]
        for preview in self.previews:
            record = self.scan.records[preview.item]
            size = f"{record['width']} × {record['height']}"
            parts.append(
                f'<p class="said"><strong>The {preview.which} image</strong>, {size}: scaled {text(preview.scale)}. '
                f'<span class="quiet">{text(self.scan.id(preview.item))}</span></p>'
            )
            if preview.failure:
                parts.append(f'<p class="said">It fails: {text(preview.failure)}</p>')
            tiny = max(record["width"], record["height"]) < 64
            figures = [_captioned(preview.original, f"the {preview.which} image", "as it is", tiny)] if preview.original else []
            for number, outcome in enumerate(preview.outcomes, start=1):
                said = f"draw {number}" if len(preview.outcomes) > 1 else "afterwards"
                figures.append(_captioned(outcome, f"the {preview.which} image, {said}", said, False))
            parts.append(f'<div class="pictures">{"".join(figures)}</div>')
        return "".join(parts)


# Pieces -----------------------------------------------------------------------------------------------------------------------


def verdict(findings: Sequence[Finding]) -> str:
    worst = [finding for finding in findings if finding.corrupts]
    if worst:
        kinds = dict.fromkeys(finding.kind for finding in worst)
        many = f"{len(worst):,} findings would" if len(worst) > 1 else "1 finding would"
        return f"{many} corrupt a result: {', '.join(kinds)}."
    if findings:
        return "Sound: nothing here would corrupt a result. Some things are worth a look."
    return "Sound: nothing was found."


def facts(scan: Scan, against: Scan | None) -> str:
    parts = ", ".join(f"{split} {scan.part(split).stop - scan.part(split).start:,}" for split in scan.splits)
    named = f"{len(scan.dataset.classes):,} classes" if scan.dataset.classes else "no labels"
    compared = f"; compared with {len(against):,} images of {against.dataset.where}" if against is not None else ""
    return f"{len(scan):,} images ({parts}), {named}{compared}."


def _mark(some: Sequence[Finding]) -> str:
    worst = sum(finding.corrupts for finding in some)
    if not worst:
        return '<span class="mark advice">advice</span>'
    return f'<span class="mark bad">corrupts{f": {worst:,}" if worst < len(some) else ""}</span>'


def _advice(kind: Kind) -> str:
    return text(kind.remedy).replace("--fix", "<code>--fix</code>")


def _listed(paths: Sequence[str], hidden: int = 0) -> str:
    if not paths and not hidden:
        return ""
    items = "".join(f"<li>{text(path)}</li>" for path in paths[:LISTED])
    hidden += max(0, len(paths) - LISTED)
    more = f"<li>and {hidden:,} more</li>" if hidden else ""
    return f'<ul class="paths">{items}{more}</ul>'


def _image(data: bytes, alternative: str, tiny: bool) -> str:
    source = base64.b64encode(data).decode()
    pixels = " class=pixels" if tiny else ""
    return f'<img{pixels} loading="lazy" alt="{text(alternative)}" src="data:image/jpeg;base64,{source}">'


def _captioned(picture: Any, alternative: str, caption: str, tiny: bool) -> str:
    return f"<figure>{_image(jpeg(picture, SIDE * 3 // 2), alternative, tiny)}<figcaption>{text(caption)}</figcaption></figure>"
