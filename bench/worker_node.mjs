// The prebuilt llama.cpp of node-llama-cpp as a contender: the same JSON lines as workers.py. Run in a folder that has the package.
import {createRequire} from "node:module";
import {pathToFileURL} from "node:url";
import readline from "node:readline";

const require = createRequire(process.cwd() + "/");
const {getLlama} = await import(pathToFileURL(require.resolve("node-llama-cpp")));
const ids = Array.from({length: 4096}, (_, i) => (7919 * i + 13) % 4000 + 5);
const processor = process.argv[2] === "processor";
const now = () => processor ? (({user, system}) => (user + system) / 1e3)(process.cpuUsage()) : performance.now();
let context, sequence;

const actions = {
    async load({path, threads}) {
        const llama = await getLlama({gpu: false, build: "never", logLevel: "error", maxThreads: threads});
        const model = await llama.loadModel({modelPath: path});
        context = await model.createContext({contextSize: 4096, batchSize: 2048, threads});
        sequence = context.getSequence();
        return "node-llama-cpp, prebuilt";
    },
    async prefill({count}) {
        await sequence.clearHistory();
        const started = now();
        await sequence.evaluateWithoutGeneratingNewTokens(ids.slice(0, count));
        return (now() - started) / 1e3;
    },
    async decode({position, tokens}) {
        await sequence.clearHistory();
        let started, seen = 0;
        for await (const token of sequence.evaluate(ids.slice(0, position), {temperature: 0, yieldEogToken: true})) {
            if (seen++ === 0) started = now();
            if (seen > tokens) break;
        }
        return (now() - started) / 1e3 / (seen - 1);
    }
};

for await (const line of readline.createInterface({input: process.stdin})) {
    const ask = JSON.parse(line);
    let answer;
    try {
        answer = {value: await actions[ask.do](ask)};
    } catch (error) {
        answer = {error: String(error)};
    }
    process.stdout.write(JSON.stringify(answer) + "\n");
}
process.exit(0);
