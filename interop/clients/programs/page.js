// A small client on matrix-js-sdk: log in, room list, timeline, page back, send, receive live.
import * as sdk from "matrix-js-sdk";
import { SlidingSync } from "matrix-js-sdk/lib/sliding-sync";

const shown = { seen: [], ready: false, rooms: [], errors: [], states: [], pos: [], refused: [] };
const told = { typing: {}, read: {}, messages: [] };
window.shown = shown;
window.told = told;

function draw(client, room) {
    document.getElementById("room").textContent = room.name;
    document.getElementById("rooms").replaceChildren(
        ...client.getRooms().map((each) => Object.assign(document.createElement("li"), { textContent: each.name })),
    );
    const lines = room.getLiveTimeline().getEvents().filter((each) => each.getType() === "m.room.message");
    shown.timeline = lines.map((each) => each.getId());
    document.getElementById("timeline").replaceChildren(
        ...lines.map((each) => {
            const line = document.createElement("li");
            line.textContent = `${each.getSender()}: ${each.isRedacted() ? "(redacted)" : each.getContent().body}`;
            line.className = each.getSender() === client.getUserId() ? "mine" : "";
            return line;
        }),
    );
}

// Each request of sliding sync goes to another server than the one before.
function going_round(servers) {
    let asked = 0;
    return (resource, options) => {
        const url = new URL(resource);
        if (url.pathname.includes("simplified_msc3575")) {
            url.host = new URL(servers[asked++ % servers.length]).host;
            shown.pos.push(url.searchParams.get("pos"));
        }
        return window.fetch(url, options);
    };
}

function sliding_sync(client, baseUrl) {
    const everything = [["*", "*"], ["m.room.member", "$LAZY"]];
    const lists = new Map([["all", { ranges: [[0, 3]], timeline_limit: 5, required_state: everything }]]);
    const opened = { timeline_limit: 20, required_state: everything };
    window.sliding = new SlidingSync(baseUrl, lists, opened, client, 2000);
    window.sliding.on("SlidingSync.Lifecycle", (state, answer, error) => {
        if (error) shown.refused.push(error.errcode ?? String(error));
    });
    return window.sliding;
}

// With servers, the client uses sliding sync, at each of them in turn.
window.begin = async (baseUrl, user, password, servers) => {
    const login = await sdk.createClient({ baseUrl }).loginRequest({
        type: "m.login.password",
        identifier: { type: "m.id.user", user },
        password,
    });
    const client = sdk.createClient({
        baseUrl,
        userId: login.user_id,
        accessToken: login.access_token,
        deviceId: login.device_id,
        timelineSupport: true,
        ...(servers && { fetchFn: going_round(servers) }),
    });
    window.client = client;
    client.on(sdk.ClientEvent.Sync, (state, before, data) => {
        shown.states.push(state);
        shown.ready ||= state === "PREPARED" || state === "SYNCING";
        document.getElementById("state").textContent = `${login.user_id}: ${state}`;
        if (data?.error && state === "ERROR") shown.errors.push(String(data.error));
        shown.rooms = client.getRooms().map((each) => [each.roomId, each.name, each.getMyMembership()]);
    });
    client.on(sdk.RoomEvent.Timeline, (event, room, toStart) => {
        if (!toStart && event.getType() === "m.room.message" && !event.status) shown.seen.push(event.getId());
        if (room) draw(client, room);
    });
    client.on(sdk.RoomMemberEvent.Typing, (event, member) => {
        told.typing[member.userId] = member.typing;
    });
    client.on(sdk.RoomEvent.Receipt, (event) => {
        for (const [eventId, types] of Object.entries(event.getContent())) {
            for (const [type, users] of Object.entries(types)) {
                for (const user of Object.keys(users)) told.read[`${type} ${user}`] = eventId;
            }
        }
    });
    client.on(sdk.ClientEvent.ReceivedToDeviceMessage, ({ message }) => told.messages.push(message.content));
    const slidingSync = servers && sliding_sync(client, baseUrl);
    await client.startClient({ initialSyncLimit: 5, lazyLoadMembers: true, pollTimeout: 2000, slidingSync });
};

window.open_room = (roomId) => {
    const room = window.client.getRoom(roomId);
    draw(window.client, room);
    return room.name;
};

window.page_back = async (roomId, limit) => {
    const room = window.client.getRoom(roomId);
    await window.client.scrollback(room, limit);
    draw(window.client, room);
    return shown.timeline.length;
};

window.say = async (roomId, body) => {
    const sent = await window.client.sendTextMessage(roomId, body);
    return sent.event_id;
};

window.join = async (roomId) => (await window.client.joinRoom(roomId)).roomId;

// Everything that a user sets besides events of rooms.
window.change = async (roomId, other) => {
    const { client } = window;
    const room = client.getRoom(roomId);
    const last = room.getLiveTimeline().getEvents().at(-1);
    await client.setAccountData("org.example.test", { kept: "by the client" }); // waits until a sync tells it
    await client.setRoomTag(roomId, "u.tea", { order: 0.5 });
    await client.sendReadReceipt(last);
    await client.setRoomReadMarkers(roomId, last.getId());
    await client.sendTyping(roomId, true, 60000);
    await client.sendToDevice("org.example.note", new Map([[other, new Map([["*", { note: "from the page" }]])]]));
    return last.getId();
};

window.kept = (roomId) => {
    const room = window.client.getRoom(roomId);
    return {
        account: window.client.getAccountData("org.example.test")?.getContent(),
        tags: room.tags,
        read: room.accountData.get("m.fully_read")?.getContent().event_id,
    };
};
