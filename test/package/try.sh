#!/usr/bin/env bash
# Installs a packed tarball in an empty folder and uses it there as a newcomer would, on Node 22: the command, the
# library, and the types. `try.sh TARBALL CHECKOUT`; the checkout lends its compiler, nothing else.
set -euo pipefail
tarball=$(realpath "$1")
checkout=$(realpath "$2")
empty=$(mktemp -d)
trap 'rm -rf "$empty"' EXIT
cd "$empty"

cat >package.json <<'JSON'
{ "name": "empty", "private": true, "type": "module", "allowScripts": { "node": true } }
JSON
npm install --silent --no-audit --no-fund --save-exact node@22 "$tarball"
export PATH="$empty/node_modules/.bin:$PATH"
case "$(node --version)" in v22.*) ;; *) echo "expected Node 22, found $(node --version)" >&2; exit 1 ;; esac

# No source comes along, and nothing that only the checkout needs.
if find node_modules/conclave -name '*.test.*' | grep .; then echo 'the package holds tests' >&2; exit 1; fi
if find node_modules/conclave -name '*.ts' ! -name '*.d.ts' | grep .; then echo 'the package holds sources' >&2; exit 1; fi
for file in LICENSE README.md CHANGELOG.md models/README.md models/WORDNET-NOTICE.txt models/lexicon-glm4moe-Q4_K_M.gguf \
  dist/index.js dist/index.d.ts dist/build/conclave-dot.wasm dist/build/conclave-relaxed.wasm \
  dist/build/conclave-simd.wasm; do
  [ -s "node_modules/conclave/$file" ] || { echo "the package lacks $file" >&2; exit 1; }
done

conclave --version
answer=$(conclave run --temp 0 -p 'What is a glacier?')
[ "$answer" = 'A glacier is a slowly moving mass of ice.' ] || { echo "the command answered: $answer" >&2; exit 1; }
conclave plan --json -m node_modules/conclave/models/lexicon-glm4moe-Q4_K_M.gguf | node -e '
  const plan = JSON.parse(require("node:fs").readFileSync(0, "utf8"));
  if (plan.architecture !== "glm4moe" || plan.device !== "cpu") throw new Error(`unexpected plan: ${plan.architecture} on ${plan.device}`);
'

cat >use.ts <<'TS'
import { load, type Model, UsageError } from 'conclave';

const model: Model = await load('node_modules/conclave/models/lexicon-glm4moe-Q4_K_M.gguf', { threads: 2, context: 256 });
const session = model.session();
let text = '';
for await (const part of session.generate([{ role: 'user', content: 'What is a computer?' }], { temperature: 0 })) {
  if (part.type === 'text') text += part.text;
}
await session.dispose();
await model.dispose();
if (text !== 'A computer is a machine for performing calculations automatically.') throw new UsageError(`answered: ${text}`);
TS
"$checkout/node_modules/.bin/tsc" --strict --target es2024 --module nodenext --lib es2024,esnext.disposable,dom --types '' --outDir . use.ts
node use.js
# The declarations are whole by themselves: checked too, with the browser's types and with Node's alone.
types() { "$checkout/node_modules/.bin/tsc" --noEmit --strict --exactOptionalPropertyTypes --skipLibCheck false \
  --target es2024 --module nodenext --typeRoots "$checkout/node_modules/@types" "$@" use.ts; }
types --lib es2024,dom --types ''
types --lib es2024 --types node
echo "packed, installed and run on Node $(node --version)"
