"""What a browser is asked about a page that it shows: scripts that run in it."""

CONTRASTS = """
(() => {
  const parsed = (colour) => {
    const numbers = colour.match(/[\\d.]+/g).map(Number);
    return numbers.length === 4 ? numbers : [...numbers, 1];
  };
  const luminance = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((each) => {
      const part = each / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const ground = (element) => {
    for (let each = element; each !== null; each = each.parentElement) {
      const colour = parsed(getComputedStyle(each).backgroundColor);
      if (colour[3] === 1) return colour;
    }
    return [255, 255, 255, 1];
  };
  const ratio = (one, other) => {
    const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const found = {};
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || element.closest("svg, noscript, [hidden]")) continue;
    const place = `${element.localName}.${element.className}`;
    found[place] = Math.min(found[place] ?? 99, ratio(parsed(getComputedStyle(element).color), ground(element)));
  }
  for (const rect of document.querySelectorAll("svg.bar rect")) {
    const place = `bar ${rect.getAttribute("class")}`;
    const fill = parsed(getComputedStyle(rect).fill);
    found[place] = Math.min(found[place] ?? 99, 1.5 * ratio(fill, ground(rect.parentElement)));
  }
  return found;
})()
"""
"""The contrast of each kind of text with what is behind it; of a segment, which needs 3 where text needs 4.5, half as
much again."""

OVERFLOWING = """
[...document.querySelectorAll("body *")]
  .filter((each) => !each.closest(".wide, svg, .skip") && each.getBoundingClientRect().right > innerWidth + 1)
  .map((each) => `${each.localName}.${each.className}`)
"""
"""What sticks out of the window, but for what scrolls by itself."""

FOCUSABLE = """
[...document.querySelectorAll("a[href], button, summary, input, select, [tabindex='0']")]
  .filter((each) => each.checkVisibility()).length
"""

FOCUSED = """
(() => {
  const each = document.activeElement, style = getComputedStyle(each);
  const text = (each.localName === "button" ? each.parentElement.parentElement : each).textContent.trim();
  const place = [...document.querySelectorAll("*")].indexOf(each);
  return [place, each.id || text.slice(0, 90), style.outlineStyle !== "none"];
})()
"""
