// Indent JSON without parsing it, so that numbers keep every digit.
export function pretty(text) {
  let out = "";
  let depth = 0;
  let inString = false;
  const line = () => `\n${"  ".repeat(depth)}`;
  for (let i = 0; i < text.length; i += 1) {
    const c = text[i];
    if (inString) {
      out += c;
      if (c === "\\") {
        i += 1;
        out += text[i] ?? "";
      } else if (c === '"') inString = false;
    } else if (c === '"') {
      inString = true;
      out += c;
    } else if (c === "{" || c === "[") {
      const close = c === "{" ? "}" : "]";
      let next = i + 1;
      while (/\s/.test(text[next] ?? "")) next += 1;
      if (text[next] === close) {
        out += c + close;
        i = next;
      } else {
        depth += 1;
        out += c + line();
      }
    } else if (c === "}" || c === "]") {
      depth = Math.max(0, depth - 1);
      out += line() + c;
    } else if (c === ",") out += c + line();
    else if (c === ":") out += ": ";
    else if (!/\s/.test(c)) out += c;
  }
  return out;
}

export const isStructured = (piece) =>
  ["json", "avro", "protobuf", "json schema", "internal"].includes(piece.format) && /^[[{]/.test(piece.text);
